// Package model checks the protocol of leases and fences itself, apart from the
// code: fence.pml describes it in Promela, and the test lets spin try every
// order of its steps. It imports nothing of the module.
package model
