package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/runner"
	"github.com/wirefence/wirefence/internal/stack"
)

// lockShortly are the arguments that run a job which takes no time.
func lockShortly(resource string, flags ...string) []string {
	return slices.Concat([]string{"lock", "--carry=options", resource}, flags, []string{"--", "echo", "ran"})
}

func TestLockKeepsALease(t *testing.T) { onEachStore(t, lockKeepsALease) }

func lockKeepsALease(t *testing.T, settings []string, resource string) {
	if slices.ContainsFunc(settings, func(s string) bool { return strings.HasPrefix(s, "WIREFENCE_ZOOKEEPER_URL=") }) {
		wirefence(t, settings, lockShortly(resource, "--keep-for=1s")...).expect(t, exitUsage, "WIREFENCE_KEEP_FOR", "end with the process")
		return
	}
	settings = slices.Concat(settings, []string{"WIREFENCE_TTL=3s"})
	url := strings.TrimPrefix(settings[len(settings)-2], "WIREFENCE_DATABASE_URL=")
	for name, test := range map[string]func(t *testing.T, resource string){
		"two with one schedule run a short job once": func(t *testing.T, resource string) {
			kept := slices.Concat(settings, []string{"WIREFENCE_KEEP_FOR=30s"})
			a, b := start(t, kept, lockShortly(resource)...), start(t, kept, lockShortly(resource)...)
			first, second := a.end(t), b.end(t)
			if second.status == 0 {
				first, second = second, first
			}
			first.expect(t, 0).says(t, "ran")
			second.expect(t, runner.ExitNotAcquired, "held by")
			if first.stderr != "" || second.stdout != "" {
				t.Errorf("the first says %q, the second prints %q", first.stderr, second.stdout)
			}
		},
		"until its time": func(t *testing.T, resource string) {
			began := time.Now()
			wirefence(t, settings, lockShortly(resource, "--keep-for=3500ms", "--log-level=debug")...).expect(t, 0, "lease kept", "until")
			wirefence(t, settings, lockShortly(resource, "--wait=1m")...).expect(t, 0)
			if waited := time.Since(began); waited < 3500*time.Millisecond {
				t.Errorf("the lease was kept for %v", waited)
			}
		},
		"but not of a failed run": func(t *testing.T, resource string) {
			for script, status := range map[string]int{
				"exit 3": 3, "exit 75": 75, "kill -TERM $$": 128 + int(syscall.SIGTERM),
				// The lease is lost, which the command doesn't know.
				fmt.Sprintf(`psql -qX '%s' -c "SELECT wirefence.revoke('%s')"`, url, resource): 0,
				// The time is over.
				"sleep 1.1": 0,
			} {
				keepFor := "--keep-for=30s"
				if script == "sleep 1.1" {
					keepFor = "--keep-for=1s"
				}
				wirefence(t, settings, "lock", resource, keepFor, "--", "sh", "-c", script).expect(t, status)
				wirefence(t, settings, lockShortly(resource)...).expect(t, 0)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, resource+":"+strings.ReplaceAll(name, " ", "_"))
		})
	}
}

// A sidecar keeps its lease behind an orderly stop alone.
func TestASidecarKeepsItsLease(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	settings := []string{"WIREFENCE_LEASE=orders", "WIREFENCE_KEEP_FOR=1m", "WIREFENCE_DRAIN_TIMEOUT=1m"}
	next := lockShortly("orders")
	issuer := []string{"WIREFENCE_DATABASE_URL=" + url}

	p := startProxy(t, url, settings...)
	awaitRole(t, p, "leader")
	busy := stack.Connect(t, p.url)
	runs(t, busy, "BEGIN; SELECT 1")
	p.signal(t, syscall.SIGTERM)
	p.stderr.Await(t, "draining")
	p.signal(t, syscall.SIGTERM)
	p.end(t).expect(t, 128+int(syscall.SIGTERM), "second signal", "the lease was released")
	wirefence(t, issuer, next...).expect(t, 0)

	p = startProxy(t, url, settings...)
	awaitRole(t, p, "leader")
	p.signal(t, syscall.SIGTERM)
	p.end(t).expect(t, 0, "drained", "the lease is kept")
	wirefence(t, issuer, next...).expect(t, runner.ExitNotAcquired, "held by")
}

// leaseState is what status says in JSON of the lease of a resource, as resource show does.
func leaseState(t *testing.T, settings []string, resource string) lease {
	t.Helper()
	var all []struct {
		Resource string
		Lease    lease
	}
	r := wirefence(t, settings, "status", "-o", "json").expect(t, 0)
	if err := json.Unmarshal([]byte(r.stdout), &all); err != nil {
		t.Fatalf("%v:\n%s", err, r.stdout)
	}
	var one struct{ Lease lease }
	r = wirefence(t, settings, "resource", "show", resource, "-o", "json").expect(t, 0)
	if err := json.Unmarshal([]byte(r.stdout), &one); err != nil {
		t.Fatalf("%v:\n%s", err, r.stdout)
	}
	for _, row := range all {
		if row.Resource == resource {
			if row.Lease.State != one.Lease.State || row.Lease.Holder != one.Lease.Holder {
				t.Errorf("status says %+v, resource show %+v", row.Lease, one.Lease)
			}
			return row.Lease
		}
	}
	t.Fatalf("%s is not listed", resource)
	return lease{}
}

func TestStatusTellsWhetherALeaseIsHeld(t *testing.T) { onEachStore(t, statusTellsWhetherALeaseIsHeld) }

func statusTellsWhetherALeaseIsHeld(t *testing.T, settings []string, resource string) {
	holder := start(t, append(settings, "WIREFENCE_HOLDER=worker-A"), "lock", resource, "--", "sh", "-c", "echo begun; sleep 60")
	holder.stdout.Await(t, "begun")
	if l := leaseState(t, settings, resource); l.State != leaseHeld || l.HeldFor != nil && (*l.HeldFor <= 0 || *l.HeldFor > 16) || l.Holder != "" {
		t.Errorf("while it is held: %+v", l)
	}
	wirefence(t, settings, "status").expect(t, 0).says(t, " held ", "worker-A")
	holder.signal(t, os.Interrupt)
	holder.end(t)
	if l := leaseState(t, settings, resource); l.State != leaseFree {
		t.Errorf("after it was released: %+v", l)
	}
	wirefence(t, settings, "status").expect(t, 0).says(t, " free ", "worker-A")
	wirefence(t, settings, "resource", "show", resource).expect(t, 0).says(t, "lease          free", "last holder    worker-A")
}

func TestStatusOfALeaseThatNoConfiguredStoreKnows(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	settings, resource := lockSettingsFor(t, url)
	wirefence(t, settings, "lock", resource, "--", "true").expect(t, 0)
	if l := leaseState(t, issuer(url), resource); l.State != leaseUnknown { // without WIREFENCE_REDIS_URL
		t.Errorf("without its store: %+v", l)
	}
	wirefence(t, issuer(url), "resource", "show", resource).expect(t, 0).says(t, "unknown, since its store is not configured here")
	away := append(issuer(url), "WIREFENCE_REDIS_URL=redis://127.0.0.1:1/0")
	r := wirefence(t, away, "status").expect(t, 0).says(t, "unknown")
	if !strings.Contains(r.stderr, "the lease store could not be asked who holds what") || !strings.Contains(r.stderr, "127.0.0.1:1") {
		t.Errorf("stderr %q", r.stderr)
	}
	wirefence(t, append(away, "WIREFENCE_ETCD_URL=etcd://127.0.0.1:1"), "status").expect(t, 2, "leases are in one store")
	// A lease whose grant PostgreSQL doesn't know.
	stack.Exec(t, url, "SELECT wirefence.declare_resource('"+resource+":unsealed', 'a test', source => 'redis')")
	unsealed := start(t, append(settings[:1:1], "WIREFENCE_HOLDER=worker-U", "WIREFENCE_UNSEALED=true"), "lock", resource+":unsealed", "--", "sh", "-c", "echo begun; sleep 60")
	unsealed.stdout.Await(t, "begun")
	if l := leaseState(t, settings, resource+":unsealed"); l.State != leaseHeld || !strings.HasPrefix(l.Holder, "worker-U/") {
		t.Errorf("a lease that isn't sealed: %+v", l)
	}
	wirefence(t, settings, "status").expect(t, 0).says(t, "held by worker-U ")
	unsealed.signal(t, os.Interrupt)
	unsealed.end(t)
}
