package lockclient

import (
	"hash/maphash"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/wirefence/wirefence/fence"
)

// A release wakes the first acquire of every client. Hundreds of processes must not
// ask the store at the same moment, so each waits for a random time that grows with
// the number of rivals it knows; one of them still asks about rivalSpread after the
// release. A client that acquires again what it has just released does the same, and
// waits for giveWay before, since the notice of the release has to reach the others.
const (
	rivalSpread = 100 * time.Microsecond
	giveWay     = time.Millisecond
	maxRivals   = 250
)

// rivals are the other clients that have recently held the resource, by the part of the
// holder before the grant's own. A client that takes the lease several times counts once.
type rivals struct {
	now, before map[uint64]struct{} // hashes of names
	grants      int                 // noted in now
	last        string              // holder
}

var rivalSeed = maphash.MakeSeed()

// note records the holder of a grant, unless it is one of this client's own. After a number of grants
// it starts a new generation, so it forgets a client that has not come back after as many
// again.
func (r *rivals) note(holder string, own bool) {
	if holder == r.last {
		return
	}
	r.last = holder
	if r.grants++; r.grants > 16+4*len(r.now) {
		r.now, r.before, r.grants = nil, r.now, 0
	}
	if own || len(r.now) >= maxRivals {
		return
	}
	if r.now == nil {
		r.now = map[uint64]struct{}{}
	}
	r.now[maphash.String(rivalSeed, holder[:max(0, strings.LastIndexByte(holder, '/'))])] = struct{}{}
}

func (r *rivals) count() int { return max(len(r.now), len(r.before)) }

// spread returns how long to wait after a release: 0 if there is at most one rival.
func (r *rivals) spread() time.Duration {
	if r.count() < 2 {
		return 0
	}
	return rand.N(time.Duration(r.count()) * rivalSpread)
}

// streaks tell when a client should give way because it takes a resource again and again.
// Such a client may always be the first to ask after its own release, and so never learn
// that another waits. A slot may serve several resources, which restarts their streaks.
type streaks [64]struct {
	resource    uint64
	since, last time.Time
}

// giveWay records an acquire. It reports that the client should give way once in every
// period of a streak, in which acquires follow each other within a period.
func (s *streaks) giveWay(resource fence.Resource, period time.Duration) bool {
	hash, now := maphash.String(rivalSeed, string(resource)), time.Now()
	slot := &s[hash%uint64(len(s))]
	if slot.resource != hash || now.Sub(slot.last) > period {
		slot.resource, slot.since = hash, now
	}
	slot.last = now
	if now.Sub(slot.since) < period {
		return false
	}
	slot.since = now
	return true
}
