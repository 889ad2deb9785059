package campaign

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/redis"
)

var server = sync.OnceValues(func() (*servers.Redis, error) { return servers.StartRedis(context.Background()) })

func TestMain(m *testing.M) {
	status := m.Run()
	if redis, err := server(); err == nil {
		redis.Close()
	}
	os.Exit(status)
}

// contender is a running campaign.
type contender struct {
	*Campaign
	t       *testing.T
	client  *lockclient.Client
	log     *stack.Log
	metrics *prometheus.Registry
	resign  context.CancelFunc
	over    chan struct{}
}

func redisServer(t *testing.T) *servers.Redis {
	t.Helper()
	redis, err := server()
	if err != nil {
		t.Fatal(err)
	}
	return redis
}

// contend runs a campaign for the test's resource on a Redis.
func contend(t *testing.T, url, name string) *contender {
	t.Helper()
	store, err := redis.Open(url)
	if err != nil {
		t.Fatal(err)
	}
	c := &contender{t: t, log: &stack.Log{}, metrics: prometheus.NewRegistry(), over: make(chan struct{})}
	if c.client, err = lockclient.New(store, lockclient.Options{Unsealed: true, Holder: name, TTL: 3 * time.Second}); err != nil {
		t.Fatal(err)
	}
	c.Campaign, err = New(Options{
		Client: c.client, Resource: "orders", RetryMin: time.Millisecond, RetryMax: 20 * time.Millisecond,
		Logger: c.log.Logger(), Registerer: c.metrics,
	})
	if err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, c.resign = context.WithCancel(context.Background())
	go func() {
		defer close(c.over)
		c.Run(ctx)
	}()
	t.Cleanup(func() {
		c.leave()
		_ = store.Close()
	})
	return c
}

// leave ends the campaign and releases its lease. It may be called twice.
func (c *contender) leave() {
	c.resign()
	ctx, cancel := context.WithTimeout(context.Background(), stack.Patience)
	defer cancel()
	if err := c.client.Close(ctx); err != nil {
		c.t.Error(err)
	}
	<-c.over
}

// await waits until the lease is held, or isn't.
func (c *contender) await(held bool) {
	c.t.Helper()
	timeout := time.After(stack.Patience)
	for {
		changed := c.Changed()
		if (c.Fence() != "") == held {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			c.t.Fatalf("the lease is held: %v\n%s", !held, c.log)
		}
	}
}

func (c *contender) metric(name string) float64 {
	c.t.Helper()
	families, err := c.metrics.Gather()
	if err != nil {
		c.t.Fatal(err)
	}
	sum := -1.0
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == name {
				sum = max(sum, 0) + m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// database returns the URL of the test's own Redis database.
func database(t *testing.T, number int) string {
	t.Helper()
	return strings.TrimSuffix(redisServer(t).URL(), "/0") + fmt.Sprintf("/%d", number)
}

func TestOneLeadsAndTheOtherStandsBy(t *testing.T) {
	url := database(t, 1)
	a := contend(t, url, "a")
	a.await(true)
	if a.Fence() != "orders=1" || a.Resource() != "orders" || a.Holder() != "" || a.metric("wirefence_lease_held") != 1 {
		t.Errorf("fence %q, holder %q, held %v", a.Fence(), a.Holder(), a.metric("wirefence_lease_held"))
	}
	b := contend(t, url, "b")
	stack.Eventually(t, "b knows a", func() bool { return strings.HasPrefix(b.Holder(), "a/") })
	if b.Fence() != "" || b.metric("wirefence_lease_held") != 0 {
		t.Error("both hold the lease")
	}
	// A contender that resigns keeps the lease until it is released.
	a.resign()
	if a.Fence() == "" {
		t.Error("the lease is gone before it was released")
	}
	a.leave()
	b.await(true)
	if a.Fence() != "" || b.Fence() != "orders=2" || b.Holder() != "" {
		t.Errorf("a has %q, b has %q", a.Fence(), b.Fence())
	}
	if a.metric("wirefence_lease_transitions_total") != 2 || b.metric("wirefence_lease_transitions_total") != 1 {
		t.Error("the transitions are counted wrongly")
	}
	if strings.Count(a.log.String(), "the lease was released") != 1 || strings.Count(a.log.String(), "WARN") != 0 {
		t.Errorf("a logs %s", a.log)
	}
}

func TestALostLeaseIsWonAgain(t *testing.T) {
	url := database(t, 2)
	a := contend(t, url, "a")
	a.await(true)
	options, err := goredis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	client := goredis.NewClient(options)
	defer client.Close()
	if err := client.Del(t.Context(), "wirefence:{orders}:lease").Err(); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, "it is won again", func() bool { return a.Fence() == "orders=2" })
	if strings.Count(a.log.String(), "level=WARN msg=\"the lease was lost\"") != 1 {
		t.Errorf("the loss isn't logged:\n%s", a.log)
	}
}

// A lasting error is logged at growing intervals, and the campaign continues.
func TestAStoreThatIsAway(t *testing.T) {
	link := stack.Started(servers.StartLink(redisServer(t).Addr())).EndWith(t)
	link.Cut()
	a := contend(t, "redis://"+link.Addr()+"/3", "a")
	stack.Eventually(t, "it has tried a few times", func() bool { return a.metric("wirefence_lease_errors_total") >= 3 })
	stack.Eventually(t, "the error is logged again", func() bool { return strings.Count(a.log.String(), "level=ERROR") >= 2 })
	if a.Fence() != "" {
		t.Error("a lease without a store")
	}
	link.Restore()
	a.await(true)
	if strings.Count(a.log.String(), "leases can be acquired again") != 1 {
		t.Errorf("it is not said that all is well:\n%s", a.log)
	}
	link.Cut()
	a.await(false)
	stack.Eventually(t, "the loss is explained", func() bool {
		return strings.Count(a.log.String(), "the lease was lost") == 1 && strings.Count(a.log.String(), lockclient.ErrUnreachable.Error()) == 1
	})
	link.Restore()
	a.await(true)
}

func TestAResourceThatCannotBe(t *testing.T) {
	if _, err := New(Options{Resource: ""}); err == nil {
		t.Error("a campaign for nothing begins")
	}
}
