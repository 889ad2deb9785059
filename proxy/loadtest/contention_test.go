package loadtest

import (
	"context"
	_ "embed"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/model"
	"github.com/wirefence/wirefence/proxy"
)

//go:embed testdata/objects.sql
var objects string

// load is how much is to be done.
type load struct {
	writers, takers         int
	transactions, takeovers int // of each
	until                   time.Time
}

// goOn reports whether somebody who has done so much has more to do.
func (l load) goOn(done, of int) bool {
	if l.until.IsZero() {
		return done < of
	}
	return time.Now().Before(l.until)
}

// all is what is asked for: a fixed load, or a time.
func all() load {
	l := load{writers: 64, takers: 6, transactions: 15, takeovers: 40}
	if *length > 0 {
		l.until = time.Now().Add(*length)
	}
	return l
}

// No deadlock, no stale commit and no undue refusal, whatever meets.
//
// Evidence: I2, I7
func TestContention(t *testing.T) {
	for _, c := range []struct {
		major           int
		deadlockTimeout string
	}{
		{15, "1s"},    // the default: most waits are over before anybody looks for a deadlock
		{18, "100ms"}, // deadlocks are looked for all the time
	} {
		t.Run(fmt.Sprint(c.major), func(t *testing.T) {
			c := gather(t, startContended(t, c.major, c.deadlockTimeout), "")
			if err := c.run(t.Context(), all()); err != nil {
				t.Fatal(err)
			}
			for _, fault := range c.faults {
				t.Error(fault)
			}
			t.Logf("-seed %d\n%s", c.seed, c.report())
			if none := c.journal.steps.Missing(model.Wanted, model.Sealed, model.Granted, model.Checked, model.Ran, model.Commits); len(none) > 0 {
				t.Errorf("no step is %v", none)
			}
			if c.sideBySide < 2 {
				t.Error("no two writers ever held one resource together")
			}
			for _, f := range []fate{committed, refused, conflict, ended} {
				if c.outcomes[fates[f]] == 0 {
					t.Errorf("no transaction was ever %s", fates[f])
				}
			}
		})
	}
}

// Each defect is found by what it must lead to.
func TestDefectsAreFound(t *testing.T) {
	pg := startContended(t, 15, "100ms")
	for _, d := range []struct{ name, defect, finding string }{
		{"stale tokens pass", stack.Defect("verdict", "'WF001'", "'pass'"), "while the last recorded was"},
		{"writers take no locks", stack.Defect("take_locks", "pg_try_advisory_xact_lock_shared(pair.key)", "true"), "while the last recorded was"},
		{"locks are taken in no order", stack.Defect("take_locks", "ORDER BY key,", "ORDER BY random(),"), "40001, which is not documented"},
		{"seals return early", stack.SealsEarly, noStep},
	} {
		t.Run(d.name, func(t *testing.T) {
			c := gather(t, pg, d.defect)
			c.sought = d.finding // a defect may lead to other faults before
			l := all()
			l.transactions, l.takeovers = 300, 900 // a small part of it will do
			if err := c.run(t.Context(), l); err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(c.faults, func(fault string) bool { return strings.Contains(fault, d.finding) }) {
				t.Errorf("not found; -seed %d\n%s\n%s", c.seed, c.report(), strings.Join(c.faults, "\n"))
			}
			t.Logf("found in %d transactions", len(c.durations))
		})
	}
}

// startContended starts a server for a crowd.
func startContended(t *testing.T, major int, deadlockTimeout string) *servers.Postgres {
	t.Helper()
	return start(t, servers.PostgresConfig{Major: major, Settings: map[string]string{
		"max_connections": "250", "deadlock_timeout": deadlockTimeout,
		"synchronous_commit": "on", // logical decoding reads what was flushed
	}})
}

// gather makes a database with all resources, and with a defect if there is one,
// and a proxy before it.
func gather(t *testing.T, pg *servers.Postgres, defect string) *crowd {
	t.Helper()
	ctx := t.Context()
	c := &crowd{pg: pg, database: stack.Database(t, pg), seed: *seed, resources: newResources(), outcomes: map[string]int{}}
	if c.seed == 0 {
		c.seed = rand.Uint64()
	}
	stack.Exec(t, pg.URL(c.database), objects)
	if defect != "" {
		stack.Exec(t, pg.URL(c.database), defect)
	}
	admin := stack.Connect(t, pg.URL(c.database))
	var err error
	if c.journal, err = openJournal(ctx, pg.URL(c.database), stack.TellStepsAlone(t, admin, "journal", "doc:{id}"), c.fault); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.journal.close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := declare(ctx, admin, c.resources); err != nil {
		t.Fatal(err)
	}
	c.proxy = stack.Proxy(t, pg, proxy.Options{})
	return c
}
