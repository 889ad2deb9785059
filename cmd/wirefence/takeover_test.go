package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/stack"
)

// comers are clients that connect, ask and leave, all the time.
type comers struct {
	served  atomic.Int64
	news    chan struct{}
	failed  atomic.Int64
	first   atomic.Value // of the failures
	leave   context.CancelFunc
	running sync.WaitGroup
}

func startComers(t *testing.T, urls ...string) *comers {
	ctx, leave := context.WithCancel(t.Context())
	c := &comers{leave: leave, news: make(chan struct{}, 1)}
	for _, url := range urls {
		for range 4 {
			c.running.Go(func() {
				for ctx.Err() == nil {
					if err := visit(url); err != nil {
						c.failed.Add(1)
						c.first.CompareAndSwap(nil, fmt.Sprint(url, ": ", err))
					}
					c.served.Add(1)
					select {
					case c.news <- struct{}{}:
					default:
					}
				}
			})
		}
	}
	t.Cleanup(c.end)
	return c
}

func (c *comers) end() {
	c.leave()
	c.running.Wait()
}

// more waits until a good number of clients have come and gone.
func (c *comers) more(t *testing.T) {
	t.Helper()
	for goal := c.served.Load() + 100; c.served.Load() < goal; {
		<-c.news
	}
}

func visit(url string) error {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "SELECT 1")
	_ = conn.Close(ctx)
	return err
}

// A new process takes the addresses over from an old one, and so does the next,
// and no client is refused or reset meanwhile; nor is a probe.
func TestTakeover(t *testing.T) {
	stack.NeedsMore(t, "11 s of CPU")
	t.Parallel()
	url := database(t, true)
	settings, listen, admin := proxySettingsFor(t, url)
	folder, err := os.MkdirTemp("", "wf-sock-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	api := freeAddress(t)
	settings = append(settings, "WIREFENCE_REUSE_PORT=true", apiTokens(t), "WIREFENCE_API_LISTEN="+api, "WIREFENCE_LISTEN="+listen+",unix:"+folder+"/.s.PGSQL.6433")
	name := url[strings.LastIndex(url, "/")+1 : strings.Index(url, "?")]
	serve := func() *running {
		p := start(t, settings, "proxy")
		p.stderr.Await(t, `"msg":"serving"`)
		return p
	}
	old := serve()
	all := startComers(t, stack.URL(listen, name), "postgres://postgres@/"+name+"?port=6433&host="+folder)
	all.more(t)
	// As most probers, it connects anew each time.
	probes := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for range 2 {
		next := serve()
		all.more(t)
		old.signal(t, syscall.SIGTERM)
		old.stderr.Await(t, "another process may accept")
		for i := range 40 {
			resp, err := probes.Get("http://" + []string{admin, api}[i%2] + "/readyz")
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("a probe goes to the old process: %s", resp.Status)
			}
		}
		old.end(t).expect(t, 0, "drained")
		all.more(t)
		old = next
	}
	all.end()
	if n := all.failed.Load(); n > 0 {
		t.Errorf("%d of %d clients were not served; the first: %v", n, all.served.Load(), all.first.Load())
	}
	if _, metrics := get(t, "http://"+admin+"/metrics"); !strings.Contains(metrics, "wirefence_logins_total") || strings.Contains(metrics, "wirefence_logins_total 0\n") {
		t.Error("the last process has served nobody")
	}
	// A proxy without WIREFENCE_REUSE_PORT can't listen beside them.
	wirefence(t, append(settings, "WIREFENCE_REUSE_PORT=false"), "proxy").expect(t, 1, "WIREFENCE_LISTEN: ", "address already in use")
	lone := startProxy(t, url)
	wirefence(t, append(settings, "WIREFENCE_LISTEN="+strings.TrimPrefix(strings.SplitN(lone.url, "/", 4)[2], "postgres@")), "proxy").
		expect(t, 1, "WIREFENCE_REUSE_PORT=true")
}

// Case 20 on the process itself: what a transaction has begun is committed.
func TestSignalsDrain(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			url := database(t, true)
			stack.Exec(t, url, "CREATE TABLE jobs (worker text)")
			p := startProxy(t, url)
			idle, busy := stack.Connect(t, p.url), stack.Connect(t, p.url)
			runs(t, busy, "BEGIN; INSERT INTO jobs VALUES ('busy')")
			p.signal(t, sig)
			if err := ended(t, idle); !strings.Contains(fmt.Sprint(err), "57P01") {
				t.Errorf("an idle session got %v", err)
			}
			if status, body := get(t, "http://"+p.admin+"/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "draining") {
				t.Errorf("/readyz answers %d: %s", status, body)
			}
			runs(t, busy, "COMMIT")
			p.end(t).expect(t, 0, "drained")
			if got := workers(t, url); got != "busy" {
				t.Errorf("jobs holds %q", got)
			}
		})
	}
}

// A second signal waits for nothing, and leaves nothing running on the server.
func TestSecondSignal(t *testing.T) {
	for second, status := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		t.Run(second.String(), func(t *testing.T) {
			t.Parallel()
			url := database(t, true)
			stack.Exec(t, url, "CREATE TABLE jobs (worker text)")
			p := startProxy(t, url, "WIREFENCE_DRAIN_GRACE=1h")
			conn := stack.Connect(t, p.url)
			over := make(chan error, 1)
			go func() {
				_, err := conn.Exec(context.Background(), "INSERT INTO jobs SELECT 'query' FROM pg_sleep(600)")
				over <- err
			}()
			becomes(t, url, "1", sleeping)
			p.signal(t, syscall.SIGTERM)
			p.stderr.Await(t, "still accepting")
			p.signal(t, second)
			p.end(t).expect(t, status, "second signal")
			if err := <-over; !strings.Contains(fmt.Sprint(err), "57P01") {
				t.Errorf("the running query got %v", err)
			}
			becomes(t, url, "0", sleeping)
			if got := workers(t, url); got != "" {
				t.Errorf("jobs holds %q", got)
			}
		})
	}
}

const sleeping = "SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"

// becomes waits until a query's one value is what is wanted.
func becomes(t *testing.T, url, want, sql string) {
	t.Helper()
	db := stack.DB{Admin: stack.Connect(t, url)}
	db.Becomes(t, want, sql)
}

func runs(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Errorf("%s: %v", sql, err)
	}
}

// workers returns what jobs holds.
func workers(t *testing.T, url string) string {
	t.Helper()
	var all string
	err := stack.Connect(t, url).QueryRow(t.Context(), "SELECT coalesce(string_agg(worker, ' ' ORDER BY worker), '') FROM jobs").Scan(&all)
	if err != nil {
		t.Fatal(err)
	}
	return all
}
