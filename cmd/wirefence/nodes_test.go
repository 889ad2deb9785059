package main

import (
	"os"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

// Commands at one node of Citus reach all that have the tokens, and say which they don't reach.
func TestTheNodesOfCitus(t *testing.T) {
	t.Parallel()
	c := stack.Citus(t, 2, nil)
	db := stack.BareOnCitus(t, c)
	var at [3][]string
	for i, node := range c.Nodes() {
		at[i] = []string{"WIREFENCE_DATABASE_URL=" + node.URL(db.Name)}
	}
	workers := []string{c.Links[0].Addr(), c.Links[1].Addr()}

	c.Links[1].Cut()
	wirefence(t, at[0], "migrate", "--citus=nodes").expect(t, exitFailure, "no token is granted until the worker "+workers[1]+" has the schema: run wirefence migrate --citus nodes again").
		says(t, workers[0]+": the schema is at version")
	c.Links[1].Restore()
	examine(t, at[0]).finds(t, "engine.citus", "problem", "not all workers of Citus record grants: Worker "+workers[1], "run wirefence migrate --citus nodes")
	wirefence(t, at[0], "migrate").expect(t, 0).says(t, workers[0]+": nothing to apply", workers[1]+": the schema is at version")
	wirefence(t, at[1], "migrate").expect(t, 0).says(t, "nothing to apply")
	for i := range at {
		examine(t, at[i]).finds(t, "engine.citus", "ok", "a node of Citus, of which each takes fenced clients", "")
	}

	follower := start(t, at[0], "history", "--follow")
	follower.stdout.Await(t, "KIND")
	stack.Exec(t, db.URL(db.Name), "SELECT wirefence.seal('orders', 34, 'worker-b')")
	wirefence(t, at[2], "check", "orders=33").expect(t, exitRefused)
	wirefence(t, at[2], "history", "orders").expect(t, 0).says(t, "refusal")
	follower.stdout.Await(t, "on node "+workers[1])
	follower.signal(t, os.Interrupt)
	followed := follower.end(t).expect(t, 0).stdout
	for i, node := range c.Nodes() {
		names := append([]string{db.Addr()}, workers...)
		names[i] = node.Addr() // as it is called from here
		for j := range names {
			names[j] += "/" + db.Name
		}
		wirefence(t, at[i], "status", "orders").expect(t, 0).says(t, append(names, "DATABASE")...)
		wirefence(t, at[i], "history").expect(t, 0).says(t, "handoff", "on node "+names[0], "refusal", "on node "+names[2])
	}
	for _, kind := range []string{"handoff", "refusal"} {
		if n := strings.Count(followed, kind); n != 1 {
			t.Errorf("%d events are called %s:\n%s", n, kind, followed)
		}
	}

	c.Links[0].Cut()
	for _, command := range []string{"status", "history"} {
		wirefence(t, at[0], command).expect(t, exitFailure, "node "+workers[0]+": ").says(t, "orders", db.Addr())
	}
	wirefence(t, at[0], "history", "--follow").expect(t, exitFailure, "node "+workers[0]+": ")
}
