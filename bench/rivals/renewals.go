package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/wirefence/wirefence/bench/figures"
	"github.com/wirefence/wirefence/internal/servers"
)

// renewals holds many locks at once and watches two periods of renewals, after
// one in which those that were acquired together have spread.
func renewals(ctx context.Context, server *servers.Redis, w way, s size) (figures.Renewals, error) {
	cost := figures.Renewals{Name: w.name, Leases: s.leases, Every: s.renew}
	before := heap()
	locker, err := w.open(server.Addr(), s.renew)
	if err != nil {
		return cost, err
	}
	defer locker.close()
	held, err := acquireAll(ctx, locker, s.leases)
	if err != nil {
		return cost, err
	}
	if err := pause(ctx, s.renew); err != nil {
		return cost, err
	}
	after := heap()
	cost.Bytes = after - min(before, after)
	start, err := usage(ctx, server)
	if err != nil {
		return cost, err
	}
	if err := pause(ctx, 2*s.renew); err != nil {
		return cost, err
	}
	end, err := usage(ctx, server)
	if err != nil {
		return cost, err
	}
	cost.During, cost.CPU, cost.RedisCPU = end.at.Sub(start.at), end.own-start.own, end.redis-start.redis
	cost.Commands = end.commands - start.commands
	for _, lock := range held {
		if lock.ctx.Err() != nil {
			cost.Lost++
		}
	}
	return cost, nil
}

func acquireAll(ctx context.Context, l locker, n int) ([]*lock, error) {
	const workers = 16
	held, errs := make([]*lock, n), make([]error, workers)
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			for i := worker; i < n && errs[worker] == nil; i += workers {
				held[i], errs[worker] = l.acquire(ctx, fmt.Sprint("renewed ", i))
			}
		})
	}
	all.Wait()
	return held, errors.Join(errs...)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc + stats.StackInuse
}

// used is what this process and Redis have used so far.
type used struct {
	at         time.Time
	own, redis time.Duration
	commands   int64 // of clients; Redis counts apart what a script does
}

func usage(ctx context.Context, server *servers.Redis) (u used, err error) {
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		return u, err
	}
	u.at = time.Now()
	u.own = time.Duration(self.Utime.Nano() + self.Stime.Nano())
	info, err := server.Do(ctx, "info", "everything")
	if err != nil {
		return u, err
	}
	text := fmt.Sprint(info)
	var seconds float64
	for _, name := range []string{"used_cpu_sys:", "used_cpu_user:"} {
		if err := scan(text, name, &seconds); err != nil {
			return u, err
		}
		u.redis += time.Duration(seconds * float64(time.Second))
	}
	for _, name := range []string{"eval", "evalsha", "set"} { // scripts of all libraries call get, pexpire and the like
		var calls int64
		if scan(text, "cmdstat_"+name+":calls=", &calls) == nil {
			u.commands += calls
		}
	}
	return u, nil
}

func scan(text, name string, into any) error {
	_, rest, found := strings.Cut(text, "\n"+name)
	if !found {
		return fmt.Errorf("no %s in Redis' INFO", name)
	}
	_, err := fmt.Sscan(strings.FieldsFunc(rest, func(r rune) bool { return r == ',' || r == '\r' })[0], into)
	return err
}
