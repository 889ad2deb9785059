package stack

import (
	"fmt"
	"hash/crc32"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
)

// OldAndNew are versions of PostgreSQL for tests of what hardly depends on the
// version, one below and one above every change of the protocol's behaviour: up to 17
// a procedure may commit in a pipeline, and from 18 on there is protocol 3.2.
var OldAndNew = []int{15, 18}

// Versions are all installed versions of PostgreSQL, or with -short OldAndNew. Flags must
// have been parsed.
func Versions() []int {
	if testing.Short() {
		return OldAndNew
	}
	return servers.PostgresVersions()
}

// Some returns the versions that a test runs on: all of these, and where time is short
// one of them, which its name decides.
func Some(t testing.TB, versions []int) []int {
	if !testing.Short() {
		return versions
	}
	at := crc32.ChecksumIEEE([]byte(t.Name())) % uint32(len(versions))
	return versions[at : at+1]
}

// OnEach runs a test on some versions, beside other tests.
func OnEach(t *testing.T, versions []int, test func(t *testing.T, major int)) {
	t.Helper()
	t.Parallel()
	for _, major := range Some(t, versions) {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			test(t, major)
		})
	}
}
