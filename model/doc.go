// Package model checks the protocol of leases, fences and holds itself, apart from
// the code: fence.pml and hold.pml describe it in Promela, and the tests let spin try
// every order of its steps. It imports nothing of the module.
package model
