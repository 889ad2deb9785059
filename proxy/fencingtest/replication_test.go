package fencingtest

import (
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// A replication connection to a database takes SQL too, as simple queries.
func TestReplicationConnectionsWriteNothingUnchecked(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, db *database) {
		db.Seal(t, "orders", 34)
		strict := db.proxyWith(t, proxy.Options{UnfencedWrites: proxy.Reject, MaxStatement: 4 << 10})
		large := insert + " -- " + strings.Repeat("x", 5<<10)
		for name, c := range map[string]struct {
			proxy    string
			settings []string
			before   string
			write    string
			want     string
		}{
			"unfenced":         {db.proxy, nil, "", "insert into cell values (9, 9)", ""},
			"comment":          {db.proxy, nil, "", insert + " /*wirefence.token='orders=33'*/", "WF001"},
			"malformed":        {db.proxy, nil, "", insert + " /*wirefence.token='orders'*/", "WF004"},
			"startup":          {db.proxy, []string{"wirefence.token", stale}, "", insert, "WF001"},
			"startup options":  {db.proxy, []string{"options", "-c wirefence.token=" + stale}, "", insert, "WF001"},
			"SET":              {db.proxy, nil, "set wirefence.token = '" + stale + "'", insert, "WF001"},
			"set_config":       {db.proxy, nil, "select set_config('wirefence.token', '" + stale + "', false)", insert, "WF001"},
			"policy":           {strict, nil, "", insert, "WF002"},
			"oversize, fenced": {strict, []string{"wirefence.token", stale}, "", large, "WF006"},
			"oversize, policy": {strict, nil, "", large, "WF006"},
		} {
			t.Run(name, func(t *testing.T) {
				conn := *db
				conn.proxy = c.proxy
				r := conn.connect(t, append([]string{"replication", "database"}, c.settings...)...)
				r.Must("IDENTIFY_SYSTEM")
				if c.before != "" {
					r.Must(c.before)
				}
				stack.WantState(t, r.Simple(c.write), c.want)
				r.Must("IDENTIFY_SYSTEM")
			})
		}
		db.Exec(t, "alter role postgres in database "+db.Name+" set wirefence.token = '"+stale+"'")
		r := db.connect(t, "replication", "database")
		r.Fails(insert, "WF001")
		db.wantRows(t, 0)
	})
}
