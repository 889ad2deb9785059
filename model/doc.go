// Package model checks the protocol of leases, fences and holds itself, apart from
// the code: four .pml files describe parts of it in Promela, and the tests let spin try
// every order of their steps. Walk takes the steps of a run of the code, and tells whether
// they are steps of the models. The package imports nothing of the module.
package model
