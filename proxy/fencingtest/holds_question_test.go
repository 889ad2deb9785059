package fencingtest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// What the question costs the server that proxies ask whether a takeover waits, while their
// sessions hold 1,000 resources.
func TestCostOfTheQuestion(t *testing.T) {
	if testing.Short() {
		t.Skip("it measures, for half a minute")
	}
	const resources, pairs = 1000, 25
	pg := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{Major: 15, Settings: map[string]string{
		"autovacuum": "off", "max_connections": "600", "max_locks_per_transaction": "256",
	}})).EndWith(t)
	for _, proxies := range []int{1, 10} {
		t.Run(fmt.Sprint(proxies), func(t *testing.T) {
			w := &world{DB: stack.NewDB(t, pg, "")}
			stack.MustExec(t, w.Admin, "SELECT wirefence.seal('r' || i, 1, 'a holder') FROM generate_series(0, $1::int - 1) AS i", resources)
			var ways []*distance
			var using sync.WaitGroup
			defer using.Wait()
			stop := make(chan struct{})
			defer close(stop)
			each := resources / proxies
			for i := range proxies {
				way := far(t, w.Addr(), 0) // which counts the answers
				ways = append(ways, way)
				behind := w.own(t, proxy.Options{DatabaseURL: strings.Replace(w.URL(w.Name), w.Addr(), way.addr, 1)})
				for first := i * each; first < (i+1)*each; first += pairs {
					c := behind.fenced(t, fenceOf(first, pairs))
					using.Go(func() { keepHolding(c, stop) })
				}
			}
			stack.Eventually(t, "all is held", func() bool { return w.held(t) >= resources })
			asking := w.issuers(t)
			if len(asking) != proxies {
				t.Fatalf("%d connections ask, want %d", len(asking), proxies)
			}
			answers := func() (n int64) {
				for _, way := range ways {
					n += way.answers.Load()
				}
				return n
			}
			began, before, answered := time.Now(), cpuOf(t, asking), answers()
			pause(10 * time.Second)
			took, spent, questions := time.Since(began), cpuOf(t, asking)-before, answers()-answered
			cost := spent / time.Duration(max(questions, 1))
			t.Logf("%d proxies that hold %d resources each: %.0f questions a second, %s of the server's CPU for each, %.1f %% of a core",
				proxies, each, float64(questions)/took.Seconds(), cost.Round(10*time.Microsecond), 100*spent.Seconds()/took.Seconds())
			if held := w.held(t); held < resources {
				t.Errorf("%d are held in the end, want %d", held, resources)
			}
			if questions < int64(10*proxies) || cost > 20*time.Millisecond {
				t.Errorf("%d questions, %s for each", questions, cost)
			}
		})
	}
}

// fenceOf is a fence of consecutive resources.
func fenceOf(first, pairs int) string {
	all := make([]string, pairs)
	for i := range all {
		all[i] = fmt.Sprintf("r%d=1", first+i)
	}
	return strings.Join(all, ",")
}

// keepHolding uses a session often enough that it holds on.
func keepHolding(c *client, stop <-chan struct{}) {
	tick := time.NewTicker(400 * time.Millisecond)
	defer tick.Stop()
	for {
		c.Must("SELECT 1", "SELECT 2", "SELECT 3") // so fast that the session counts as busy
		select {
		case <-stop:
			return
		case <-tick.C:
		}
	}
}

// issuers are the backends that answer the question.
func (w *world) issuers(t *testing.T) (pids []int) {
	t.Helper()
	rows, err := w.Admin.Query(t.Context(), "SELECT pid FROM pg_stat_activity WHERE query LIKE '%wirefence.wanted(%' AND datname = current_database() AND pid <> pg_backend_pid()")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var pid int
		if err := rows.Scan(&pid); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// cpuOf is the processor time of processes so far, in user and system mode. The kernel
// counts it in hundredths of a second.
func cpuOf(t *testing.T, pids []int) (sum time.Duration) {
	t.Helper()
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(text)[strings.LastIndex(string(text), ")")+1:])
		for _, field := range fields[11:13] {
			ticks, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			sum += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	return sum
}
