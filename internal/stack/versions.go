package stack

import (
	"fmt"
	"hash/crc32"
	"os"
	"slices"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
)

// OldAndNew are versions of PostgreSQL for tests of what hardly depends on the
// version, one below and one above every change of the protocol's behaviour: up to 17
// a procedure may commit in a pipeline, and from 18 on there is protocol 3.2.
var OldAndNew = []int{15, 18}

// more says that the other servers are there. It is read before a TestMain can clear what
// the commands under test would read.
var more = os.Getenv("WIREFENCE_TEST_MORE") != ""

// Alone says that Go, Redis and the distribution's PostgreSQL have to do, and four minutes: with -short,
// unless there is more. Flags must have been parsed.
func Alone() bool { return testing.Short() && !more }

// Versions are all installed versions of PostgreSQL. With -short they are the distribution's, or
// where there is more those of OldAndNew that make test doesn't have. Flags must have been parsed.
func Versions() []int {
	switch {
	case Alone():
		return []int{servers.DefaultVersion()}
	case testing.Short():
		return others(OldAndNew)
	default:
		return servers.PostgresVersions()
	}
}

// others are those of several versions that make test doesn't have.
func others(versions []int) []int {
	return slices.DeleteFunc(slices.Clone(versions), func(major int) bool { return major == servers.DefaultVersion() })
}

// Version is the one to start for a test that asks for one, or for 0: the distribution's
// where no other has to be there.
func Version(major int) int {
	if major == 0 || Alone() {
		return servers.DefaultVersion()
	}
	return major
}

// Some returns the versions that a test runs on: all of these, or with -short one of them that make
// test doesn't have, which its name decides, or the distribution's.
func Some(t testing.TB, versions []int) []int {
	if Alone() {
		return Versions()
	}
	if !testing.Short() {
		return versions
	}
	if others := others(versions); len(others) > 0 {
		versions = others
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

// NeedsMore skips a test that needs more than Go, Redis and the distribution's PostgreSQL
// where these are all, or that would take a good part of make test. make more runs it.
func NeedsMore(t testing.TB, what string) {
	t.Helper()
	if Alone() {
		t.Skip("left to make more: it needs " + what)
	}
}
