package fencingtest

import (
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// A replication connection to a database takes SQL too, as simple queries.
func TestReplicationConnectionsWriteNothingUnchecked(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		strict := w.own(t, proxy.Options{UnfencedWrites: proxy.Reject, MaxStatement: 4 << 10})
		large := insert + " -- " + strings.Repeat("x", 5<<10)
		for name, c := range map[string]struct {
			behind   *world
			settings []string
			before   string
			write    string
			want     string
		}{
			"unfenced":         {w, nil, "", "insert into cell values (9, 9)", ""},
			"comment":          {w, nil, "", insert + " /*wirefence.token='orders=33'*/", "WF001"},
			"malformed":        {w, nil, "", insert + " /*wirefence.token='orders'*/", "WF004"},
			"startup":          {w, []string{"wirefence.token", stale}, "", insert, "WF001"},
			"startup options":  {w, []string{"options", "-c wirefence.token=" + stale}, "", insert, "WF001"},
			"SET":              {w, nil, "set wirefence.token = '" + stale + "'", insert, "WF001"},
			"set_config":       {w, nil, "select set_config('wirefence.token', '" + stale + "', false)", insert, "WF001"},
			"policy":           {strict, nil, "", insert, "WF002"},
			"oversize, fenced": {strict, []string{"wirefence.token", stale}, "", large, "WF006"},
			"oversize, policy": {strict, nil, "", large, "WF006"},
		} {
			t.Run(name, func(t *testing.T) {
				r := c.behind.connect(t, append([]string{"replication", "database"}, c.settings...)...)
				r.Must("IDENTIFY_SYSTEM")
				if c.before != "" {
					r.Must(c.before)
				}
				stack.WantState(t, r.Simple(c.write), c.want)
				r.Must("IDENTIFY_SYSTEM")
			})
		}
		w.Exec(t, "alter role postgres in database "+w.Name+" set wirefence.token = '"+stale+"'")
		r := w.connect(t, "replication", "database")
		r.Fails(insert, "WF001")
		w.wantRows(t, 0)
	})
}
