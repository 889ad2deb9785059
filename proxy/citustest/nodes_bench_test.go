package citustest

import (
	"fmt"
	"maps"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// BenchmarkNodes has 64 clients of the coordinator insert one row at a time into a table that is
// distributed over 1, 2 and 4 workers: direct, through a proxy without a fence, and under fences of so many
// resources; and into a table that the coordinator has by itself. Each node has the tokens. A takeover has no
// holder to wait for.
func BenchmarkNodes(b *testing.B) {
	stack.NeedsCitus(b)
	const clients = 64
	roomy := maps.Clone(settings)
	maps.Copy(roomy, map[string]string{"max_connections": "500", "synchronous_commit": "off"})
	for _, workers := range []int{1, 2, 4} {
		c := stack.Citus(b, workers, roomy)
		db := stack.OnCitusNodes(b, c, objects...)[0]
		for tenant := range clients {
			db.Seal(b, fmt.Sprint("tenant-", tenant), 1)
		}
		through := stack.Serve(b, proxy.Options{Upstream: "postgres://" + db.Addr() + "/", DatabaseURL: db.URL(db.Name), Hold: time.Second, DrainTimeout: time.Second}).Addr
		inserts := func(addr, table string, tenants int) func(b *testing.B) {
			return func(b *testing.B) {
				var all [clients]*pgx.Conn
				for i := range all {
					url := strings.Replace(db.URLFor("app", db.Name), db.Addr(), addr, 1)
					if tenants > 0 {
						url += fmt.Sprintf("&options=-c%%20wirefence.token%%3Dtenant-%d%%3D1", i%tenants)
					}
					all[i] = stack.Connect(b, url)
				}
				var next atomic.Int64
				b.SetParallelism(clients / runtime.GOMAXPROCS(0))
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					conn := all[(next.Add(1)-1)%clients]
					for pb.Next() {
						if _, err := conn.Exec(b.Context(), "insert into "+table+" (token) values ($1)", 1); err != nil {
							b.Error(err)
							return
						}
					}
				})
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
			}
		}
		name := func(what string) string { return fmt.Sprintf("workers=%d/%s", workers, what) }
		b.Run(name("alone"), inserts(db.Addr(), "notes", 0))
		b.Run(name("direct"), inserts(db.Addr(), "jobs", 0))
		b.Run(name("unfenced"), inserts(through, "jobs", 0))
		for _, tenants := range []int{1, 16, 64} {
			b.Run(name(fmt.Sprint("tenants=", tenants)), inserts(through, "jobs", tenants))
		}
		token := int64(34)
		b.Run(name("takeover"), func(b *testing.B) {
			for b.Loop() {
				token++
				db.Seal(b, "orders", token)
			}
		})
		c.Close()
	}
}

// BenchmarkVisibility commits a row on each of two workers in one transaction, and tells how far apart
// the moments are at which readers of the two see it, as far as they can tell: each reads again and
// again.
func BenchmarkVisibility(b *testing.B) {
	c := stack.Citus(b, 2, settings)
	nodes := stack.OnCitusNodes(b, c, objects...)
	var ids [2]int
	var readers [2]*pgx.Conn
	for i := range ids {
		ids[i] = stack.Value[int](b, nodes[0], "select min(id) from cells join pg_dist_shard_placement as p on p.shardid = get_shard_id_for_distribution_column('cells', id) where concat('127.0.0.1:', p.nodeport) = $1", c.Links[i].Addr())
		readers[i] = nodes[i+1].Direct(b)
	}
	writer := nodes[0].Direct(b)
	var sum, longest time.Duration
	version, rounds := 0, 0
	for b.Loop() {
		version++
		rounds++
		saw := make(chan time.Time, len(readers))
		for i, reader := range readers {
			go func() {
				for n := 0; n != version; {
					if err := reader.QueryRow(b.Context(), "select n from cells where id = $1", ids[i]).Scan(&n); err != nil {
						b.Error(err)
						break
					}
				}
				saw <- time.Now()
			}()
		}
		if _, err := writer.Exec(b.Context(), "update cells set n = $1 where id = $2 or id = $3", version, ids[0], ids[1]); err != nil {
			b.Fatal(err)
		}
		gap := (<-saw).Sub(<-saw).Abs()
		sum, longest = sum+gap, max(longest, gap)
	}
	b.ReportMetric(float64(sum.Microseconds())/float64(rounds), "µs-apart")
	b.ReportMetric(float64(longest.Microseconds()), "µs-apart-at-most")
}
