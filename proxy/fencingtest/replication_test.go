package fencingtest

import (
	"strings"
	"testing"

	"github.com/wirefence/wirefence/proxy"
)

// A replication connection to a database takes SQL too, as simple queries.
func TestReplicationConnectionsWriteNothingUnchecked(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, db *database) {
		db.seal(t, "orders", 34)
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
			"comment":          {db.proxy, nil, "", insert + " /*wirefence.token='orders=33'*/", "WF006"},
			"malformed":        {db.proxy, nil, "", insert + " /*wirefence.token='orders'*/", "WF004"},
			"startup":          {db.proxy, []string{"wirefence.token", stale}, "", insert, "WF006"},
			"startup options":  {db.proxy, []string{"options", "-c wirefence.token=" + stale}, "", insert, "WF006"},
			"SET":              {db.proxy, nil, "set wirefence.token = '" + stale + "'", insert, "WF006"},
			"set_config":       {db.proxy, nil, "select set_config('wirefence.token', '" + stale + "', false)", insert, "WF006"},
			"policy":           {strict, nil, "", insert, "WF002"},
			"oversize, fenced": {strict, []string{"wirefence.token", stale}, "", large, "WF006"},
			"oversize, policy": {strict, nil, "", large, "WF006"},
		} {
			t.Run(name, func(t *testing.T) {
				conn := *db
				conn.proxy = c.proxy
				r := conn.connect(t, append([]string{"replication", "database"}, c.settings...)...)
				r.must("IDENTIFY_SYSTEM")
				if c.before != "" {
					r.must(c.before)
				}
				wantCode(t, r.simple(c.write), c.want)
				r.must("IDENTIFY_SYSTEM")
			})
		}
		db.exec(t, "alter role postgres in database "+db.name+" set wirefence.token = '"+stale+"'")
		r := db.connect(t, "replication", "database")
		r.fails(insert, "WF006")
		db.wantRows(t, 0)
	})
}
