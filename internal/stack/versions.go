package stack

import (
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
)

// OldAndNew are versions of PostgreSQL for tests of what hardly depends on the
// version, one below and one above every change of the protocol's behaviour: up to 17
// a procedure may commit in a pipeline, and from 18 on there is protocol 3.2.
var OldAndNew = []int{15, 18}

// Versions are all versions of PostgreSQL that are there, and with -short OldAndNew.
// Flags must be parsed by then.
func Versions() []int {
	if testing.Short() {
		return OldAndNew
	}
	return servers.PostgresVersions()
}
