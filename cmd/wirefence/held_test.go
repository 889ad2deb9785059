package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

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
