package loadtest

import (
	"context"
	_ "embed"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
)

const (
	resources = 1000
	hot       = 40  // are drawn as often as all the others together
	fixed     = 8   // have a table each
	wild      = 900 // from here on resources are not known before their first token, and never sealed
)

// resource is what all clients know of one: its lock service's counter, and the
// highest token that is known to be recorded, which a writer believes to be the
// current one.
type resource struct {
	id             int
	byUse          bool // a higher token advances by its use
	sealable       bool
	preemptAfter   time.Duration
	next, believed atomic.Int64
	// Revocations that have begun and those that have ended.
	revoking, revoked atomic.Int64
}

// newResources have every mix of policies.
func newResources() []*resource {
	waits := [...]time.Duration{200 * time.Millisecond, fence.Never, time.Second, fence.Never, 5 * time.Second}
	all := make([]*resource, resources)
	for i := range all {
		all[i] = &resource{id: i, byUse: i%2 == 0 || i >= wild, sealable: i < wild, preemptAfter: waits[i%len(waits)]}
		if i >= wild {
			all[i].preemptAfter = 5 * time.Second // the default
		}
	}
	return all
}

func (r *resource) name() fence.Resource { return fence.Resource(fmt.Sprintf("doc:%d", r.id)) }

//go:embed testdata/declare.sql
var declareSQL string

// declare tells the database the policies, and seals a first token of each
// resource that isn't wild.
func declare(ctx context.Context, conn *pgx.Conn, all []*resource) error {
	var names, advances, waits []string
	for _, r := range all[:wild] {
		names = append(names, string(r.name()))
		advance, wait := fence.AdvanceOnGrant, "never"
		if r.byUse {
			advance = fence.AdvanceOnUse
		}
		if r.preemptAfter != fence.Never {
			wait = fmt.Sprint(r.preemptAfter.Milliseconds(), " ms")
		}
		advances, waits = append(advances, string(advance)), append(waits, wait)
		r.next.Store(1)
		r.believed.Store(1)
	}
	_, err := conn.Exec(ctx, declareSQL, names, advances, waits)
	return err
}

// raise makes a number at least n.
func raise(number *atomic.Int64, n int64) {
	for {
		old := number.Load()
		if old >= n || number.CompareAndSwap(old, n) {
			return
		}
	}
}

// drawSet returns 1 to 32 resources in no order.
func drawSet(r *rand.Rand, all []*resource) []*resource {
	set := make([]*resource, 0, 32)
	drawn := map[int]bool{}
	for n := 1 + r.IntN(1<<r.IntN(6)); len(set) < n; {
		i := r.IntN(resources)
		if r.IntN(2) == 0 {
			i = r.IntN(hot)
		}
		if !drawn[i] {
			drawn[i] = true
			set = append(set, all[i])
		}
	}
	return set
}

// tokens are what one transaction presents, by resource.
type tokens map[*resource]int64

// fence writes a set's tokens in the order given.
func (t tokens) fence(set []*resource) string {
	pairs := make([]string, len(set))
	for i, r := range set {
		pairs[i] = fmt.Sprintf("%s=%d", r.name(), t[r])
	}
	return strings.Join(pairs, ",")
}

// values is a set with its tokens as a table in SQL.
func (t tokens) values(set []*resource) string {
	rows := make([]string, len(set))
	for i, r := range set {
		rows[i] = fmt.Sprintf("(%d, %d)", r.id, t[r])
	}
	return "(VALUES " + strings.Join(rows, ", ") + ") AS p (id, token)"
}
