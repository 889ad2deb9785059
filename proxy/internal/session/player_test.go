package session

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// player is a client of a world: it has one session after the other.
type player struct {
	*traffic
	world    *world
	draw     *dice
	proxy    *asker
	plan     []part // what it sends next
	left     int    // plans that it is still to draw in this session
	open     bool   // a batch is open
	ahead    bool   // it sends without waiting for answers
	plain    bool   // it carries no fence, and sends no word of one
	bare     bool   // it tells one of bareStories
	leaves   bool   // it goes as soon as it has its answers
	moved    time.Time
	pausedBy time.Time

	said []byte // to a plain client, since its login
}

// connect begins a session.
func (p *player) connect() {
	w, d := p.world, p.draw
	s := w.setup
	p.ahead, p.leaves, p.left = d.n(4) == 3, d.n(2) == 1, 2+d.n(12)
	p.plain = !s.policy.unlockers && !s.policy.required && !s.policy.leased && d.n(8) == 7
	if p.bare = !p.plain && d.n(8) == 7; p.bare {
		p.left = 2
	}
	if !p.plain && !p.bare {
		s.token = w.retell(pick(d, "", "a=1", "a=1", "b=1", "a=1,b=1", "a=3"))
	}
	w.sessions++
	b := newBackend(w.dice, s.major, s.policy, s.token)
	b.id, b.primary = fmt.Sprint("s", w.sessions), w.primary
	w.backends = append(w.backends, b)
	p.traffic = &traffic{dice: w.dice, server: b, at: &w.at}
	var lease Lease
	if s.policy.leased {
		lease = tenure(w.retell("lease=1"))
	}
	p.session = p.newSession(p.proxy, w.sessions, lease)
	// Up to 15, a far proxy that requires a fence refuses SET transaction_read_only = off, which is
	// in the near one's exchange.
	if !p.plain && d.n(3) == 2 && !(s.policy.required && s.major < 16) {
		p.far = &traffic{dice: w.dice, server: b, at: &w.at, session: p.newSession(w.proxies[d.n(2)], -w.sessions, nil)}
	}
	p.plan, p.open, p.moved, p.said = nil, false, w.at, nil
	b.greet()
}

// tenure is the fence of the near proxy's lease, which the far one knows nothing of.
type tenure string

func (t tenure) Fence() string            { return string(t) }
func (t tenure) Resource() fence.Resource { return "lease" }
func (t tenure) Holder() string           { return "another" }

// newSession is a session in a proxy, with a number that is the same in each run.
func (p *player) newSession(proxy *asker, number int, lease Lease) *Session {
	s := p.world.setup.session(lease, &p.world.at, proxy.databases)
	if own := &s.hold.number; *own != 0 {
		*own = int32(number)
		s.ownName = ownPrefix + fmt.Sprint(number)
	}
	return s
}

// hops are the client's session and that of another proxy behind it, if there is one.
func (p *player) hops() []*traffic {
	if p.far == nil {
		return []*traffic{p.traffic}
	}
	return []*traffic{p.traffic, p.far}
}

// move lets the client, the server or the session go on. It reports whether one did.
func (p *player) move() bool {
	w := p.world
	switch {
	case p.server.dead || p.ended() != nil || w.dice.n(400) == 0:
		p.part()
		return true
	case p.server.resume != nil && w.dice.n(50) == 0:
		p.server.cancel()
	}
	p.refill()
	ways := 1 + 3*len(p.hops())
	at := w.dice.n(ways)
	for i := range ways {
		if !p.one((at + i) % ways) {
			continue
		}
		if p.moved = w.at; p.server.violated != "" {
			w.fault("%s: %s", p.server.id, p.server.violated)
		} else if wrong := p.bounded(); wrong != "" {
			w.fault("%s: %s", p.server.id, wrong)
		}
		return true
	}
	if w.at.Sub(p.moved) > time.Minute {
		w.fault("%s hangs: %s", p.server.id, p.verdict())
	}
	return p.finish()
}

// one moves on one of the ways.
func (p *player) one(way int) bool {
	b := p.server
	if way > 3 {
		return p.far.move(way - 4)
	}
	if way == 3 {
		if b.resume == nil {
			return false
		}
		b.wake()
		return b.resume == nil
	}
	if way == 0 {
		before := len(p.pending)
		moved := p.traffic.move(way)
		return moved && len(p.pending) < before
	}
	said, since := p.server.out, p.session.LoggedIn()
	moved := p.traffic.move(way)
	if p.plain && since && way == 2 {
		p.said = append(p.said, said[:len(said)-len(p.server.out)]...)
	}
	return moved
}

// answered reports whether nothing of the session is on its way.
func (p *player) answered() bool {
	for _, t := range p.hops() {
		if !t.session.LoggedIn() || t.session.InputWaits() || len(t.pending)+len(t.inbox)+len(t.toServer)+len(t.toClient) > 0 {
			return false
		}
	}
	return p.server.resume == nil && len(p.server.in)+len(p.server.out) == 0 && (p.far == nil || len(p.far.seen) == 0)
}

// refill draws what the client sends next.
func (p *player) refill() {
	w, d := p.world, p.draw
	if len(p.pending) > 0 || w.at.Before(p.pausedBy) || !p.session.LoggedIn() || !p.answered() && !(p.ahead && w.dice.n(8) == 7) {
		return
	}
	if len(p.plan) == 0 {
		if p.left == 0 {
			return
		}
		if p.left--; p.left == 0 || w.left <= 0 {
			p.plan, p.left = ending(), 0
		} else {
			p.plan = p.drawPlan()
		}
		if d.n(30) == 0 {
			p.pausedBy = w.at.Add(time.Duration(d.n(600)) * time.Millisecond)
		}
	}
	next := p.plan[0]
	p.plan = p.plan[1:]
	if next.bytes == nil {
		p.pausedBy = w.at.Add(time.Duration(50+d.n(150)) * time.Millisecond)
		return
	}
	w.left--
	w.messages++
	p.messages++
	if !w.skip[w.messages-1] || p.left == 0 {
		p.pending = next.bytes
	}
}

// drawPlan draws the client's next messages.
func (p *player) drawPlan() (parts []part) {
	d := p.draw
	if p.plain {
		sql := pick(d, "SELECT 1", "INSERT INTO t VALUES (1)", "BEGIN", "COMMIT", "SELECT fails", "UPDATE t SET a = 1 RETURNING a")
		return []part{p.message(sql)}
	}
	texts := slices.Concat([]string{"ROLLBACK"}, pick(d, stories...))
	switch k := d.n(4); {
	case p.bare:
		texts = pick(d, bareStories...)
	case k < 2:
		parts, p.open = drawMessage(d, p.world.setup.major, p.open)
		return parts
	case k == 2:
		parts = append(parts, query(p.world.retell("SET wirefence.token = '"+pick(d, "a=1", "a=1", "b=1", "a=2,b=1", "a=3")+"'")))
	}
	if p.open {
		parts = append(parts, sync_)
	}
	p.open = false
	if !p.bare && d.n(2) == 0 { // a busy client holds
		texts = []string{"ROLLBACK", inserts, inserts, "SELECT 1", "BEGIN", inserts, drawText(d, 1), drawText(d, pick(d, 1, 1, 2)), "", "COMMIT"}
	}
	comment := pick(d, "", "", signed)
	for _, sql := range texts {
		if sql == inserts || d.n(3) == 0 {
			sql += comment
		}
		if sql == "" {
			parts = append(parts, part{})
		} else {
			parts = append(parts, p.message(p.world.retell(sql)))
		}
	}
	return parts
}

// tick is what the driver does for holds.
func (p *player) tick() {
	for _, t := range p.hops() {
		s := t.session
		if !s.LoggedIn() || p.ended() != nil || p.server.dead || p.world.at.Before(t.due) {
			continue
		}
		send, next := s.ReleaseHold()
		if t.due = next; send {
			t.drive()
		}
		if next.IsZero() {
			t.due = p.world.at.Add(5 * time.Millisecond) // a hold may be taken meanwhile
		}
	}
}

// idlesInTheWay finds a session that keeps its hold though nothing runs and a takeover waits. One
// whose client has sent no Sync yet isn't idle: preempt_after bounds that.
func (p *player) idlesInTheWay(t *takeover) {
	b := p.server
	if !b.locked(t.resource) || b.tx.began || !p.answered() || slices.ContainsFunc(p.hops(), func(t *traffic) bool { return !t.session.Idle() }) {
		return
	}
	since := p.moved
	if t.began.After(since) {
		since = t.began
	}
	if p.world.at.Sub(since) > 500*time.Millisecond {
		p.world.fault("%s keeps its hold of %s for %s, though it is idle and a takeover waits (I7)", b.id, t.resource, p.world.at.Sub(since))
	}
}

// finish ends a session that has said all. It reports whether it has.
func (p *player) finish() bool {
	w := p.world
	if p.left > 0 || len(p.plan) > 0 || !p.answered() || w.at.Before(p.pausedBy) {
		return false
	}
	if !p.leaves && len(p.server.held)+len(p.server.lingering) > 0 && w.at.Sub(p.moved) < 3*time.Second {
		return false
	}
	if p.leaves {
		p.leave()
		p.server.unlockAll()
	}
	if wrong := p.verdict(); wrong != "" {
		w.fault("%s: %s", p.server.id, wrong)
	}
	if p.plain && (!bytes.HasSuffix(p.seen, p.said) || strings.Contains(p.server.tale(), "wirefence")) {
		w.fault("%s: a session without a fence isn't left alone (I6)", p.server.id)
	}
	p.part()
	return true
}

// ended is the session that has ended; nil if none has.
func (p *player) ended() *Session {
	for _, t := range p.hops() {
		if t.session.Fatal() != nil {
			return t.session
		}
	}
	return nil
}

func (p *player) leave() {
	for _, t := range p.hops() {
		t.session.Leave()
	}
}

// part ends the session, and begins the next one.
func (p *player) part() {
	w := p.world
	if s := p.ended(); s != nil && s.Fatal().Message != s.tooLarge().Message {
		w.fault("%s: the session ends: %s", p.server.id, s.Fatal().Message)
	}
	p.leave()
	p.server.die()
	if w.violated != "" {
		return
	}
	if w.left > 0 {
		p.connect()
		return
	}
	w.players = slices.DeleteFunc(w.players, func(other *player) bool { return other == p })
}

// message is a step of a story as messages.
func (p *player) message(sql string) part {
	d := p.draw
	one := func(sql string) part { return query(sql) }
	how, text, _ := strings.Cut(sql, ": ")
	switch how + ": " {
	case asNamed:
		return part{slices.Concat(wire.AppendClose(nil, 'S', "p"), wire.AppendParse(nil, "p", text), sync_.bytes), sql}
	case runNamed + ": ":
		return part{slices.Concat(wire.AppendExecute(wire.AppendBind(nil, "", "p"), ""), sync_.bytes), sql}
	case byBatch:
		one = run
	case atOnce:
	default:
		if d.n(3) > 0 {
			return query(sql)
		}
		one, text = run, sql
	}
	var all []byte
	for text := range strings.SplitSeq(text, andThen) {
		all = append(all, one(text).bytes...)
	}
	if how != strings.TrimSuffix(atOnce, ": ") {
		all = append(all, sync_.bytes...)
	}
	return part{all, sql}
}
