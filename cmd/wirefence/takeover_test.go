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
	t.Parallel()
	url := database(t, true)
	settings, listen, admin := proxySettingsFor(t, url)
	folder, err := os.MkdirTemp("", "wf-sock-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	settings = append(settings, "WIREFENCE_REUSE_PORT=true", "WIREFENCE_LISTEN="+listen+",unix:"+folder+"/.s.PGSQL.6433")
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
		for range 20 {
			resp, err := probes.Get("http://" + admin + "/readyz")
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
