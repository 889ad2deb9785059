package session

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// dice makes choices of the bytes of a fuzz input; with none left, at random, or
// the first choice is taken each time.
type dice struct {
	left []byte
	rand *rand.Rand
	// retell changes a text that was drawn; nil leaves it.
	retell func(text string) string
}

func (d *dice) n(choices int) int {
	switch {
	case len(d.left) > 0:
	case d.rand != nil:
		return d.rand.IntN(choices)
	default:
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
	far     *traffic // through another proxy, whose client the session is; nil: the session speaks to the server
	server  *backend
	at      *time.Time

	pending  []byte // not sent yet
	inbox    []byte // at the session, not used yet
	toServer []byte
	toClient []byte // at the session
	seen     []byte // by the client
	sent     int    // bytes that went to the server
	received int    // bytes that the client sent
	messages int
	idle     int       // times that only the clock moved
	due      time.Time // when to look at its hold
	leaves   bool

	fromClient, fromServer Out
}

// newTraffic puts the parts together; direct leaves the session out.
func newTraffic(s *setup, direct bool) *traffic {
	d, at := &dice{left: s.travel}, time.Unix(1000, 0)
	t := &traffic{dice: d, server: newBackend(d, s.major, s.policy, s.token), at: &at, pending: s.sends(), messages: 3 * len(s.script), leaves: s.leaves()}
	if !direct {
		var lease Lease
		if s.policy.leased {
			lease = &fickle{d}
		}
		t.session = s.session(lease, t.at, NewDatabases(func() time.Time { return at }))
	}
	t.server.greet()
	return t
}

// session is a new session, with a clock that others move.
func (s *setup) session(lease Lease, at *time.Time, databases *Databases) *Session {
	policy := Config{Mode: s.mode, RequireFence: s.policy.required, MaxStatement: 1 << 10, Pooling: PoolingSession, Hold: s.hold, Lease: lease, Clock: func() time.Time { return *at }}
	return New(NewConfig(policy), databases, &wire.Startup{Params: map[string]string{"user": "u"}}, silent{})
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
		*t.at = t.at.Add(pick(t.dice, 0, 0, 0, time.Millisecond, 0, 10*time.Millisecond, 60*time.Millisecond, 0))
		if t.dice.n(8) == 7 {
			t.tick()
		}
		begin := t.dice.n(3)
		moved := false
		for i := range 3 {
			if moved = t.move((begin + i) % 3); moved {
				break
			}
		}
		if !moved && !t.settle() {
			return t.verdict()
		}
		if wrong := t.bounded(); wrong != "" {
			return wrong
		}
	}
}

// tick is what the driver does when the time of a hold is over.
func (t *traffic) tick() {
	if t.session == nil || !t.session.LoggedIn() {
		return
	}
	if send, _ := t.session.ReleaseHold(); send {
		t.drive()
	}
}

// settle lets time pass until nothing is held. It reports whether there is more to do.
func (t *traffic) settle() bool {
	if t.session == nil || t.server.dead || t.idle > 20 || !t.session.LoggedIn() || t.session.HoldDeadline().IsZero() {
		return false
	}
	t.idle++
	*t.at = t.at.Add(time.Second)
	t.tick()
	return true
}

// move carries some bytes on one of the three ways. It reports whether there
// were any.
func (t *traffic) move(way int) bool {
	switch way {
	case 0: // the client sends
		if len(t.pending) == 0 || t.session != nil && (t.session.InputWaits() || !t.session.LoggedIn() || t.session.Fatal() != nil || t.session.Terminated()) {
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
		if t.far == nil {
			t.server.feed(t.toServer[:n])
		} else {
			t.far.pending = append(t.far.pending, t.toServer[:n]...)
		}
		t.toServer = t.toServer[n:]
	default: // the server's answers arrive
		out := &t.server.out
		if t.far != nil {
			out = &t.far.seen
		}
		if len(*out) == 0 {
			return false
		}
		n := t.some(*out)
		t.toClient = append(t.toClient, (*out)[:n]...)
		*out = (*out)[n:]
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
	before := t.session.LoggedIn()
	used, wake := t.session.FromServer(t.toClient, &t.fromServer)
	if t.session.LoggedIn() && !before {
		t.server.log = append(t.server.log, loggedIn)
	}
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
	if entries := s.q.Len(); entries > 32*(t.messages+4) || s.names.prepared.Pending()+s.names.portals.Pending() > entries {
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
	case s.Fatal() != nil && s.Fatal().Message == s.tooLarge().Message && s.rest.text:
		return "" // the text carries a fence
	case s.Fatal() != nil:
		return "the session ends: " + s.Fatal().Message
	case len(t.toClient) > 0:
		return fmt.Sprintf("%d bytes of the server's are not used", len(t.toClient))
	case t.leaves && s.InputWaits():
		return "the session waits for a server that has nothing to say"
	case t.leaves:
		return "" // the driver ends it
	case len(t.pending) > 0 || len(t.inbox) > 0:
		return fmt.Sprintf("the session hangs with %d bytes of the client's to go, held %v", len(t.pending)+len(t.inbox), s.InputWaits())
	case !s.Idle() && s.cfg.Mode != Off:
		return fmt.Sprintf("the session is not idle in the end: %d entries", s.q.Len())
	case s.names.prepared.Pending()+s.names.portals.Pending() > 0:
		return fmt.Sprintf("%d Parses and %d Binds are remembered in the end", s.names.prepared.Pending(), s.names.portals.Pending())
	case len(t.server.held)+len(t.server.lingering) > 0:
		return fmt.Sprintf("in the end the server still holds %v %v", t.server.held, t.server.lingering)
	case !bytes.HasSuffix(t.seen, append(append(row("x"), message(wire.CommandComplete, "SELECT\x00")...), message(wire.ReadyForQuery, "I")...)):
		return "the last answer is not the last query's"
	}
	return ""
}

// leaves reports whether the client goes before its script's end.
func (s *setup) leaves() bool {
	return s.cut > 0 || strings.HasPrefix(s.script[len(s.script)-1].story, "Terminate")
}

// judge plays a setup and says what is wrong: with the server's view of it, or with
// the client's.
func (s *setup) judge() string {
	proxied := newTraffic(s, false)
	if wrong := proxied.run(); wrong != "" {
		return wrong + proxied.server.tale()
	}
	if s.mode == Shadow && bytes.Contains(proxied.seen, []byte("\x00C2D000")) {
		return "" // docs/rollout.md: a procedure can't commit behind a check in its batch
	}
	return s.compare(proxied)
}

// mayCarry reports whether a session carries a fence, or counts as one that may.
func (s *setup) mayCarry() bool {
	return s.token != "" || s.policy.required || s.policy.leased || s.policy.failing || s.policy.unlockers ||
		bytes.Contains(s.bytes(), []byte("wirefence")) || bytes.Contains(s.bytes(), []byte(setsByCall)) || padding.Match(s.bytes())
}

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
	s := draw(&dice{left: input})
	if s.judge() == "" {
		return
	}
	s = s.smaller()
	tb.Fatalf("%s\n%s", s.judge(), s)
}

// sends are the bytes that the client sends before it leaves.
func (s *setup) sends() []byte {
	all := s.bytes()
	return all[:max(0, len(all)-s.cut)]
}

func (s *setup) bytes() (all []byte) {
	for _, p := range s.script {
		all = append(all, p.bytes...)
	}
	return all
}

func (s *setup) String() string {
	text := fmt.Sprintf("mode %d, version %d, %+v, hold %s, the variable begins as %q, cut %d, travels by %v", s.mode, s.major, s.policy, s.hold, s.token, s.cut, s.travel)
	for _, p := range s.script {
		text += "\n\t" + padding.ReplaceAllString(p.story, "/*xxx*/")
	}
	return text
}
