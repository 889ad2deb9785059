// Command rivals measures the lock client beside other libraries that keep locks
// in Redis, on one server and in turn, and prints figures.Leases as JSON for the
// report of bench.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/wirefence/wirefence/bench/figures"
	"github.com/wirefence/wirefence/internal/servers"
)

// size is how much is measured.
type size struct {
	rounds   int
	during   time.Duration // one rate
	handoffs int           // in each round
	leases   int           // that are renewed
	renew    time.Duration // mean time between renewals of one lease
}

func main() {
	log.SetFlags(0)
	s := size{}
	flag.IntVar(&s.rounds, "rounds", 5, "how often each rate is measured")
	flag.DurationVar(&s.during, "during", 3*time.Second, "how long one rate is measured")
	flag.IntVar(&s.handoffs, "handoffs", 20, "handoffs of each library in each round")
	flag.IntVar(&s.leases, "leases", 10000, "leases that one process renews")
	flag.DurationVar(&s.renew, "renew", 5*time.Second, "mean time between renewals of one lease")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	results, err := measure(ctx, s)
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(results); err != nil {
		log.Fatal(err)
	}
}

// measure lets all ways take turns, round after round.
func measure(ctx context.Context, s size) (*figures.Leases, error) {
	server, err := servers.StartRedis(ctx)
	if err != nil {
		return nil, err
	}
	defer server.Close()
	results := &figures.Leases{}
	for _, w := range ways {
		results.Ways = append(results.Ways, figures.Way{Name: w.name})
	}
	for range s.rounds {
		for i, w := range ways {
			if err := w.measure(ctx, server.Addr(), s, &results.Ways[i]); err != nil {
				return nil, err
			}
		}
	}
	for _, w := range ways {
		if !w.renews {
			continue
		}
		cost, err := renewals(ctx, server, w, s)
		if err != nil {
			return nil, err
		}
		results.Renewals = append(results.Renewals, cost)
	}
	return results, nil
}

// measure opens the library twice, for a holder and one who waits.
func (w way) measure(ctx context.Context, addr string, s size, into *figures.Way) error {
	one, err := w.open(addr, s.renew)
	if err != nil {
		return err
	}
	defer one.close()
	rate, err := perSecond(ctx, s.during, one)
	if err != nil {
		return err
	}
	into.Rates = append(into.Rates, rate)
	if !w.waits {
		return nil
	}
	other, err := w.open(addr, s.renew)
	if err != nil {
		return err
	}
	defer other.close()
	times, err := handoffs(ctx, s.handoffs, one, other)
	into.Handoffs = append(into.Handoffs, times...)
	return err
}

func perSecond(ctx context.Context, during time.Duration, l locker) (float64, error) {
	calls := context.WithoutCancel(ctx) // the lock client hands over to a goroutine what can be cancelled; others don't heed it
	began, n := time.Now(), 0
	for time.Since(began) < during && ctx.Err() == nil {
		held, err := l.acquire(calls, "rate")
		if err != nil {
			return 0, err
		}
		if err := held.release(calls); err != nil {
			return 0, err
		}
		n++
	}
	return float64(n) / time.Since(began).Seconds(), ctx.Err()
}
