//go:build linux

// Package faulttest takes leases and writes under them while stores, networks,
// clients and PostgreSQL fail, and looks for a history that should not be: one
// in which grants are not linearizable, an older token commits behind a newer
// grant, or a token is granted twice. What is lost is availability only, and
// docs/reference/faults.md says how much.
//
// Clients are processes, so that they can be stopped and killed. What they say
// of themselves, and the order of commits by PostgreSQL's logical decoding, is
// the history.
package faulttest

import (
	"flag"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/stack"
)

var (
	length    = flag.Duration("faults", 2*time.Second, "how long faults strike in each run, at least 4 ttl")
	seed      = flag.Uint64("seed", 0, "of what strikes when; 0 takes another each time")
	failovers = flag.Int("failovers", 1, "how often PostgreSQL under Patroni gets another primary in each run")
	page      = flag.String("page", "", "write the losses into this page, docs/reference/faults.md")
)

func TestMain(m *testing.M) {
	if os.Getenv(clientVariable) != "" {
		os.Exit(runClient())
	}
	os.Exit(suite.Run(m))
}

// suite has the judge: the server of the runs that do not harm it.
var suite = stack.Suite{
	Objects: "CREATE ROLE " + writerRole + " LOGIN; CREATE ROLE " + issuerRole + " LOGIN",
	Settings: map[string]string{
		"max_connections": "500", "max_replication_slots": "100", "autovacuum": "off",
		"synchronous_commit": "on", // what was acknowledged outlives a crash
	},
	Parallel: 4, // they wait more than they compute
}

// theSeed is the seed of all runs.
var theSeed = sync.OnceValue(func() uint64 {
	if *seed == 0 {
		return rand.Uint64()
	}
	return *seed
})

// The invariants hold under every fault, and after the repair clients get leases and
// write again.
//
// Evidence: I1, I2, I3, I9
func TestFaults(t *testing.T) {
	var mu sync.Mutex
	var losses []loss
	var promotions []takeovers
	t.Run("of", func(t *testing.T) {
		for _, c := range changes {
			t.Run(strings.ReplaceAll(patroni+"/"+c.name, " ", "_"), func(t *testing.T) {
				t.Parallel()
				result := runChange(t, c, none)
				for _, violation := range result.violations {
					t.Error(violation)
				}
				mu.Lock()
				defer mu.Unlock()
				promotions = append(promotions, result)
			})
		}
		for _, k := range kinds {
			for _, f := range k.faults {
				t.Run(strings.ReplaceAll(k.name+"/"+f.name, " ", "_"), func(t *testing.T) {
					t.Parallel()
					l := runFault(t, k, f)
					mu.Lock()
					defer mu.Unlock()
					losses = append(losses, l)
				})
			}
		}
	})
	refused := 0
	for _, l := range losses {
		refused += l.refused
	}
	if len(losses) > 0 && refused == 0 {
		t.Error("no zombie was ever refused")
	}
	if *page != "" && !t.Failed() {
		if err := writePage(*page, losses, promotions); err != nil {
			t.Error(err)
		}
	}
}

// runFault runs one fault of one store.
func runFault(t *testing.T, k kind, f fault) loss {
	t.Helper()
	s := theSeed()
	t.Logf("-seed %d", s)
	w := open(t, k, f, none, s)
	h, err := w.run(t.Context(), max(*length, 4*k.ttl))
	if err != nil {
		t.Fatal(err)
	}
	found := violations(h, f.keepsMemory)
	for _, violation := range found {
		t.Error(violation)
	}
	if len(found) > 0 {
		drawing, err := draw(h)
		t.Logf("the history is drawn in %s (%v)", drawing, err)
	}
	l := lossOf(w, h, len(found))
	t.Log(l, w.steps.Counts())
	if f.strike != nil && l.strikes == 0 {
		t.Error("the fault never struck")
	}
	return l
}
