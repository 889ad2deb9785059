package lockclient

import (
	"hash/maphash"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/wirefence/wirefence/fence"
)

// A release wakes the first of every client's line. To keep hundreds of
// processes from asking all at the same moment, each waits for a random time
// that grows with the number of rivals it knows: so one of them still asks about
// rivalSpread after the release. It is the same for who has just released and
// comes again; that one also waits for giveWay, since the others first have to
// hear of the release.
const (
	rivalSpread = 100 * time.Microsecond
	giveWay     = time.Millisecond
	maxRivals   = 250
)

// rivals are the other clients that a line has seen hold its resource lately,
// by the name in front of the grant's id. Who takes the lease over and over
// counts once.
type rivals struct {
	now, before map[uint64]struct{} // hashes of names
	grants      int                 // noted in now
	last        string              // holder
}

var rivalSeed = maphash.MakeSeed()

// note remembers the holder of a grant unless it is the client's own. After some
// grants it begins anew, so that who came no more is forgotten after as many
// again.
func (r *rivals) note(holder, own string) {
	if holder == r.last {
		return
	}
	r.last = holder
	if r.grants++; r.grants > 16+4*len(r.now) {
		r.now, r.before, r.grants = nil, r.now, 0
	}
	name := holder
	if i := strings.LastIndexByte(holder, '/'); i >= 0 {
		name = holder[:i]
	}
	if name == own || len(r.now) >= maxRivals {
		return
	}
	if r.now == nil {
		r.now = map[uint64]struct{}{}
	}
	r.now[maphash.String(rivalSeed, name)] = struct{}{}
}

func (r *rivals) count() int { return max(len(r.now), len(r.before)) }

// spread is how long to wait when the resource was freed: not at all if there
// is but one rival.
func (r *rivals) spread() time.Duration {
	if r.count() < 2 {
		return 0
	}
	return rand.N(time.Duration(r.count()) * rivalSpread)
}

// streaks tell when a client should give way that takes a resource over and
// over. It may always be the first to ask after its own release, and so never
// learn that another waits. A slot may serve several resources, which begins
// their streaks anew.
type streaks [64]struct {
	resource    uint64
	since, last time.Time
}

// giveWay notes an acquire, and reports once in every period of a streak whose
// acquires are less than a period apart that it should give way.
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
