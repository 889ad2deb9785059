package session

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// dice makes choices of the bytes of a fuzz input; with none left, the first
// choice is taken each time.
type dice struct{ left []byte }

func (d *dice) n(choices int) int {
	if len(d.left) == 0 {
		return 0
	}
	v := d.left[0]
	d.left = d.left[1:]
	return int(v) % choices
}

func pick[T any](d *dice, of ...T) T { return of[d.n(len(of))] }

// traffic is one client, the session and the model of a server, with the bytes
// that are on their way between them.
type traffic struct {
	dice    *dice
	session *Session // nil: the client speaks to the server directly
	server  *backend
	at      time.Time

	pending  []byte // not sent yet
	inbox    []byte // at the session, not used yet
	toServer []byte
	toClient []byte // at the session
	seen     []byte // by the client
	sent     int    // bytes that went to the server
	received int    // bytes that the client sent
	messages int

	fromClient, fromServer Out
}

// newTraffic puts the parts together; direct leaves the session out.
func newTraffic(s *setup, direct bool) *traffic {
	d := &dice{s.travel}
	t := &traffic{dice: d, server: newBackend(d, s.major, s.policy, s.token), at: time.Unix(1000, 0), pending: s.bytes(), messages: 3 * len(s.script)}
	if !direct {
		policy := Config{Mode: s.mode, RequireFence: s.policy.required, MaxStatement: 1 << 10, Pooling: PoolingSession}
		if s.policy.leased {
			policy.Lease = &fickle{d}
		}
		cfg := NewConfig(policy)
		catalogs := NewCatalogs(func() time.Time { return t.at })
		t.session = New(cfg, catalogs, &wire.Startup{Params: map[string]string{"user": "u"}}, silent{})
	}
	t.server.greet()
	return t
}

// fickle is a lease that comes and goes. Token 3 is stale, and 2 may be.
type fickle struct{ dice *dice }

func (f *fickle) Fence() string {
	return pick(f.dice, "lease=1", "lease=1", "", "lease=2", "lease=4", "lease=3")
}
func (f *fickle) Resource() fence.Resource { return "lease" }
func (f *fickle) Holder() string           { return "another" }

// some draws how many of the bytes that are there go on.
func (t *traffic) some(b []byte) int {
	switch t.dice.n(4) {
	case 1:
		return min(len(b), 1+t.dice.n(12))
	case 2:
		return min(len(b), 1+t.dice.n(256))
	}
	return len(b)
}

// run moves bytes until none can be moved. It returns what is wrong.
func (t *traffic) run() string {
	for {
		if t.server.violated != "" {
			return t.server.violated
		}
		if t.dice.n(16) == 15 {
			t.at = t.at.Add(4 * time.Second)
		}
		begin := t.dice.n(3)
		moved := false
		for i := range 3 {
			if moved = t.move((begin + i) % 3); moved {
				break
			}
		}
		if !moved {
			return t.verdict()
		}
		if wrong := t.bounded(); wrong != "" {
			return wrong
		}
	}
}

// move carries some bytes on one of the three ways. It reports whether there
// were any.
func (t *traffic) move(way int) bool {
	switch way {
	case 0: // the client sends
		if len(t.pending) == 0 || t.session != nil && (t.session.Held() || !t.session.LoggedIn() || t.session.Farewell() != nil) {
			return false
		}
		n := t.some(t.pending)
		t.inbox = append(t.inbox, t.pending[:n]...)
		t.pending = t.pending[n:]
		t.received += n
		t.drive()
	case 1: // the server works
		if len(t.toServer) == 0 {
			return false
		}
		n := t.some(t.toServer)
		t.server.feed(t.toServer[:n])
		t.toServer = t.toServer[n:]
	default: // the server's answers arrive
		if len(t.server.out) == 0 {
			return false
		}
		n := t.some(t.server.out)
		t.toClient = append(t.toClient, t.server.out[:n]...)
		t.server.out = t.server.out[n:]
		t.deliver()
	}
	return true
}

// drive gives the session what the client sent.
func (t *traffic) drive() {
	if t.session == nil {
		t.toServer = append(t.toServer, t.inbox...)
		t.inbox = nil
		return
	}
	used := t.session.FromClient(t.inbox, &t.fromClient)
	for _, b := range t.fromClient.Buffers(nil) {
		t.toServer = append(t.toServer, b...)
		t.sent += len(b)
	}
	t.inbox = t.inbox[used:]
}

// deliver gives the session what the server sent.
func (t *traffic) deliver() {
	if t.session == nil {
		t.seen = append(t.seen, t.toClient...)
		t.toClient = nil
		return
	}
	used, wake := t.session.FromServer(t.toClient, &t.fromServer)
	for _, b := range t.fromServer.Buffers(nil) {
		t.seen = append(t.seen, b...)
	}
	t.toClient = t.toClient[used:]
	if !t.session.LoggedIn() {
		b := t.session.TakeToServer()
		t.toServer = append(t.toServer, b...)
		t.sent += len(b)
	} else if wake {
		t.drive()
	}
}

// bounded reports what grows beyond what the client has sent: each message may
// bring a check and a few questions, and leaves an entry or two.
func (t *traffic) bounded() string {
	s := t.session
	if s == nil {
		return ""
	}
	const each, few = 1 << 10, 64 << 10
	if t.sent > t.received+each*t.messages+few {
		return fmt.Sprintf("%d bytes went to the server for %d bytes of the client's", t.sent, t.received)
	}
	if entries := s.q.Len() + len(s.prepared.inflight) + len(s.portals.inflight); entries > 32*(t.messages+4) {
		return fmt.Sprintf("%d entries for %d messages", entries, t.messages)
	}
	return ""
}

// verdict looks at a session in which nothing moves any more.
func (t *traffic) verdict() string {
	if bytes.Contains(t.seen, []byte(marker)) {
		return "the client sees an answer to the proxy's own question"
	}
	if t.server.dead || t.session == nil {
		return ""
	}
	s := t.session
	switch {
	case s.Farewell() != nil && s.Farewell().Code == string(fence.CannotBeFenced):
		return "" // a block of the proxy's own that a simple query would leave open
	case s.Farewell() != nil:
		return "the session ends: " + s.Farewell().Message
	case len(t.pending) > 0 || len(t.inbox) > 0:
		return fmt.Sprintf("the session hangs with %d bytes of the client's to go, held %v", len(t.pending)+len(t.inbox), s.Held())
	case len(t.toClient) > 0:
		return fmt.Sprintf("%d bytes of the server's are not used", len(t.toClient))
	case !s.Idle() && s.cfg.Mode != Off:
		return fmt.Sprintf("the session is not idle in the end: %d entries", s.q.Len())
	case len(s.prepared.inflight)+len(s.portals.inflight) > 0:
		return fmt.Sprintf("%d Parses and %d Binds are remembered in the end", len(s.prepared.inflight), len(s.portals.inflight))
	case !bytes.HasSuffix(t.seen, append(append(row("x"), message(wire.CommandComplete, "SELECT\x00")...), message(wire.ReadyForQuery, "I")...)):
		return "the last answer is not the last query's"
	}
	return ""
}

// judge plays a setup and says what is wrong: with the server's view of it, or
// with the client's, where a session that carries no fence must see what it
// would see directly.
func (s *setup) judge() string {
	proxied := newTraffic(s, false)
	if wrong := proxied.run(); wrong != "" {
		return wrong + proxied.server.tale()
	}
	if s.mode == Enforce && s.mayDiffer(proxied.seen) {
		return ""
	}
	direct := newTraffic(s, true)
	direct.server.policy.enforced = false
	direct.run()
	want, got := direct.seen, proxied.seen
	if s.mode == Shadow || s.mayCarry() {
		// A transaction that has failed may say so before it misses a portal.
		want, got = anyCode.ReplaceAll(want, nil), anyCode.ReplaceAll(got, nil)
	}
	if !bytes.Equal(want, got) {
		return fmt.Sprintf("the client sees\n%q\nand directly\n%q", proxied.seen, direct.seen) + proxied.server.tale()
	}
	return ""
}

// mayCarry reports whether a session carries a fence, or counts as one that does
// since a question failed, or a function may have set the variable, be it one that
// nobody knows.
func (s *setup) mayCarry() bool {
	return s.token != "" || s.policy.required || s.policy.leased || s.policy.failing || s.policy.setters ||
		bytes.Contains(s.bytes(), []byte("wirefence")) || bytes.Contains(s.bytes(), []byte("ter()"))
}

// mayDiffer reports whether the client of a session that may carry a fence saw
// something else than it would see directly: a refusal, or what comes of the
// implicit transaction in which a check is.
func (s *setup) mayDiffer(seen []byte) bool {
	if !s.mayCarry() {
		return false
	}
	if !s.policy.schema || bytes.Contains(seen, []byte("\x00CWF00")) {
		return true
	}
	// The check before a function call is a simple query, which drops the unnamed
	// statement and portal.
	calls := slices.ContainsFunc(s.script, func(p part) bool { return p.story == call.story })
	if calls && slices.ContainsFunc(s.script, func(p part) bool { return unnamed.MatchString(p.story) }) {
		return true
	}
	// Nor is it sent alone: what it makes the server report comes before the answer.
	if calls && bytes.Contains(s.bytes(), []byte("standard_conforming_strings")) {
		return true
	}
	for _, alone := range []string{"VACUUM", "DISCARD ALL", "CALL", "DO '", "CONCURRENTLY"} {
		if bytes.Contains(s.bytes(), []byte(alone)) {
			return true
		}
	}
	return false
}

var unnamed = regexp.MustCompile(`^(Bind|Execute|Describe)`)

var anyCode = regexp.MustCompile(`C(34000|25P02)\x00`)

// smaller drops what a failure doesn't need.
func (s *setup) smaller() *setup {
	for again := true; again; {
		again = false
		for i := range s.script[:max(0, len(s.script)-4)] {
			less := *s
			less.script = slices.Delete(slices.Clone(s.script), i, i+1)
			if less.judge() != "" {
				s, again = &less, true
				break
			}
		}
		if less := *s; len(s.travel) > 0 {
			if less.travel = s.travel[:len(s.travel)/2]; less.judge() != "" {
				s, again = &less, true
			}
		}
	}
	return s
}

// judgeTraffic plays what the dice say.
func judgeTraffic(tb testing.TB, input []byte) {
	tb.Helper()
	s := draw(&dice{input})
	if s.judge() == "" {
		return
	}
	s = s.smaller()
	tb.Fatalf("%s\n%s", s.judge(), s)
}

func (s *setup) bytes() (all []byte) {
	for _, p := range s.script {
		all = append(all, p.bytes...)
	}
	return all
}

func (s *setup) String() string {
	text := fmt.Sprintf("mode %d, version %d, %+v, the variable begins as %q, travels by %v", s.mode, s.major, s.policy, s.token, s.travel)
	for _, p := range s.script {
		text += "\n\t" + p.story
	}
	return text
}
