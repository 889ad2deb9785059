// Package model checks the protocol of leases, fences and holds itself, apart from
// the code: four .pml files describe parts of it in Promela, and the tests let spin try
// every order of their steps. It imports nothing of the module.
package model
