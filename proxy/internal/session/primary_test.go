package session

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wirefence/wirefence/model"
)

// primary is what the backends of one server share: the rows of resource_locks, the takeovers
// that queue for their locks, and the steps of all, which a model.Walk judges.
type primary struct {
	broken   defects
	walk     model.Walk
	trace    []model.Step // the last ones
	wrong    string       // what the walk says
	steps    int
	position uint64 // of the last commit

	rows, before map[string]lockRow // as they are, and as they were one seal ago
	version      int                // how many seals there were
	server       int                // which one it is, by promotions
	queue        []*takeover
	backends     []*backend
}

// lockRow is a row of resource_locks.
type lockRow struct {
	token   int64
	server  int // that sealed it
	version int // of the rows, when it was sealed
}

// defects are planted in the server.
type defects struct {
	sealsEarly  bool // a seal doesn't wait for those that have the lock
	jumpsByOne  bool // the first token behind a promotion follows the last one
	oldSnapshot bool // a check accepts a row that a snapshot shows and that isn't the newest
}

// takeover is one that queues for a resource's lock.
type takeover struct {
	by, resource string
	token        int64
	began        time.Time
}

// preemptAfter is when a takeover ends those in its way.
const preemptAfter = 5 * time.Second

// What a check or a hold answers beside refusals: it waits for a lock; the transaction's
// snapshot is too old.
const (
	waiting              = "waits"
	serializationFailure = "40001"
)

func newPrimary() *primary {
	p := &primary{rows: map[string]lockRow{}, before: map[string]lockRow{}}
	for _, resource := range []string{"a", "b", "o", "lease"} {
		t := &takeover{by: "first", resource: resource, token: 1}
		p.announce(t)
		p.seal(t, time.Time{})
		p.step(model.Granted, t.by, resource, t.token)
	}
	return p
}

func (p *primary) step(kind model.Kind, actor, resource string, token int64) {
	s := model.Step{Kind: kind, Actor: actor, Resource: resource, Token: token}
	if kind == model.Commits {
		p.position++
	}
	if kind == model.Commits || kind == model.Promoted {
		s.Position = p.position
	}
	if p.steps++; len(p.trace) == 400 {
		p.trace = append(p.trace[:0], p.trace[200:]...)
	}
	p.trace = append(p.trace, s)
	if err := p.walk.Step(s); err != nil && p.wrong == "" {
		p.wrong = err.Error()
	}
}

// stale reports whether a check refuses a token.
func (p *primary) stale(resource, token string) bool {
	n, err := strconv.ParseInt(token, 10, 64)
	return err != nil || n != p.rows[resource].token || p.rows[resource].server != p.server
}

// next is the token that an acquire counts.
func (p *primary) next(resource string, d *dice) int64 {
	r := p.rows[resource]
	if r.server != p.server && !p.broken.jumpsByOne {
		return r.token + 1<<32 + int64(d.n(1<<31))
	}
	return r.token + 1
}

func (p *primary) announce(t *takeover) {
	p.queue = append(p.queue, t)
	p.step(model.Wanted, t.by, t.resource, t.token)
}

// seal tries to record the token. It reports whether the takeover is over, and whether its
// token was recorded.
func (p *primary) seal(t *takeover, now time.Time) (over, sealed bool) {
	r := p.rows[t.resource]
	if t.token <= r.token {
		p.leave(t)
		p.step(model.Refused, t.by, t.resource, t.token)
		return true, false
	}
	for _, b := range p.backends {
		switch {
		case p.broken.sealsEarly || !b.locked(t.resource):
		case now.Sub(t.began) >= preemptAfter:
			b.die()
		default:
			return false, false
		}
	}
	p.leave(t)
	p.version++
	p.before[t.resource], p.rows[t.resource] = r, lockRow{t.token, p.server, p.version}
	p.step(model.Sealed, t.by, t.resource, t.token)
	return true, true
}

func (p *primary) leave(t *takeover) {
	p.queue = slices.DeleteFunc(p.queue, func(other *takeover) bool { return other == t })
}

// wanted reports whether a takeover of a resource queues.
func (p *primary) wanted(resource string) bool {
	return slices.ContainsFunc(p.queue, func(t *takeover) bool { return t.resource == resource })
}

// promote lets a standby take over, which may lack the last seal of each resource.
func (p *primary) promote(d *dice) {
	for _, b := range slices.Clone(p.backends) {
		b.die()
	}
	p.queue = nil
	p.server++
	for _, resource := range slices.Sorted(maps.Keys(p.rows)) {
		if d.n(2) == 1 {
			p.rows[resource] = p.before[resource]
		}
		p.step(model.Promoted, "", resource, p.rows[resource].token)
	}
}

// The rest is of one backend.

func (b *backend) step(kind model.Kind, pair string) {
	if b.primary == nil {
		return
	}
	resource, token, _ := strings.Cut(pair, "=")
	n, _ := strconv.ParseInt(token, 10, 64)
	b.primary.step(kind, b.id, resource, n)
}

// identity is that of its server.
func (b *backend) identity() string {
	if b.primary == nil {
		return "7/00000001"
	}
	return fmt.Sprintf("7/%08d", b.primary.server)
}

func (b *backend) isWanted(fence string) bool {
	if b.primary == nil {
		return b.dice.n(8) == 7
	}
	return slices.ContainsFunc(strings.Split(fence, ","), func(pair string) bool {
		resource, _, _ := strings.Cut(pair, "=")
		return b.primary.wanted(resource)
	})
}

// mustWait reports whether a takeover queues ahead of a backend that wants locks. One that
// has a lock already doesn't queue for it again.
func (b *backend) mustWait(pairs []string) bool {
	return b.primary != nil && slices.ContainsFunc(pairs, func(pair string) bool {
		resource, _, _ := strings.Cut(pair, "=")
		return !b.locked(resource) && b.primary.wanted(resource)
	})
}

// outdated reports whether a check can't judge pairs by the transaction's snapshot.
func (b *backend) outdated(pairs []string) bool {
	return b.tx.frozen && b.tx.queried && b.primary != nil && slices.ContainsFunc(pairs, func(pair string) bool {
		resource, _, _ := strings.Cut(pair, "=")
		return b.primary.rows[resource].version > b.tx.version
	})
}

// wake goes on with a message that waited for a lock.
func (b *backend) wake() {
	resume := b.resume
	b.resume = nil
	resume()
	b.feed(nil)
}

// cancel ends the message that waits for a lock.
func (b *backend) cancel() {
	b.resume = nil
	b.fail(queryCanceled)
	b.feed(nil)
}

// die ends the backend.
func (b *backend) die() {
	if !slices.Contains(b.primary.backends, b) {
		return
	}
	b.dead, b.resume = true, nil
	b.tx = transaction{}
	clear(b.held)
	clear(b.lingering)
	b.step(model.Gone, "")
	b.primary.backends = slices.DeleteFunc(b.primary.backends, func(other *backend) bool { return other == b })
}
