package session

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wirefence/wirefence/model"
)

// world is a deployment in one goroutine: clients with sessions in several proxies, one server,
// and takeovers. Each step moves some bytes, lets the server or a takeover go on, or time pass;
// the dice decide which.
type world struct {
	*primary
	dice     *dice
	at       time.Time
	setup    setup
	proxies  []*asker
	players  []*player
	takers   []*taker
	known    map[string]int64 // the token that the last acquire of a resource has returned
	sessions int
	left     int // messages that clients are still to send
	messages int
	skip     map[int]bool // messages that they leave out
	moves    int
	violated string
}

// asker is what sessions of one proxy share, with the question whether their holds are wanted.
type asker struct {
	databases    *Databases
	asks         bool
	state        int // of the question: 0 none, 1 on its way, 2 the answer is
	next, sent   time.Time
	keys, wanted []int64
	server       string
}

// taker acquires resources.
type taker struct {
	name   string
	waits  *takeover
	sealed bool
}

// newWorld is the world of a seed, whose clients send so many messages, but for those to skip.
func newWorld(seed uint64, size int, broken defects, skip map[int]bool) *world {
	d := &dice{rand: rand.New(rand.NewPCG(seed, 1<<32))}
	w := &world{primary: newPrimary(), dice: d, at: time.Unix(1000, 0), left: size, skip: skip, known: map[string]int64{"a": 1, "b": 1, "lease": 1}}
	w.broken = broken
	w.setup = setup{major: pick(d, 18, 17, 15, 14, 16), hold: pick(d, 50*time.Millisecond, 50*time.Millisecond, 0)}
	w.setup.policy = terms{enforced: true, required: d.n(6) == 5, schema: true, unlockers: d.n(6) == 5, snapshots: d.n(6) == 5, leased: d.n(6) == 5}
	for n := range 2 {
		w.proxies = append(w.proxies, &asker{databases: NewDatabases(func() time.Time { return w.at }), asks: n == 0 || d.n(2) == 0})
		w.takers = append(w.takers, &taker{name: fmt.Sprint("taker", n)})
	}
	for n := range 1 + d.n(4) {
		p := &player{world: w, draw: &dice{rand: rand.New(rand.NewPCG(seed, uint64(n)))}, proxy: w.proxies[n%2]}
		p.draw.retell = w.retell
		w.players = append(w.players, p)
		p.connect()
	}
	return w
}

// run makes steps until all clients are through, or something is wrong.
func (w *world) run() string {
	for w.violated == "" && len(w.players) > 0 {
		w.moves++
		w.move()
		if w.wrong != "" {
			w.fault("%s", w.wrong)
		}
	}
	return w.violated
}

func (w *world) fault(format string, args ...any) {
	if w.violated == "" {
		w.violated = fmt.Sprintf(format, args...)
	}
}

func (w *world) move() {
	switch k := w.dice.n(40); {
	case k < 4:
		w.pass(pick(w.dice, 200*time.Microsecond, time.Millisecond, time.Millisecond, 5*time.Millisecond))
	case k < 6:
		w.proxies[w.dice.n(len(w.proxies))].move(w)
	case k < 8:
		w.takers[w.dice.n(len(w.takers))].move(w)
	case k == 8 && w.dice.n(500) == 0:
		w.promote(w.dice)
		for _, t := range w.takers {
			if !t.sealed {
				t.waits = nil
			}
		}
	default:
		at := w.dice.n(len(w.players))
		for i := range w.players {
			if w.players[(at+i)%len(w.players)].move() {
				return
			}
		}
		w.pass(10 * time.Millisecond)
	}
}

// pass lets time pass, and does what is due.
func (w *world) pass(d time.Duration) {
	w.at = w.at.Add(d)
	for _, p := range w.players {
		p.tick()
	}
}

// move is what wantedPoll does.
func (a *asker) move(w *world) {
	const name = marker
	switch {
	case !a.asks:
	case a.state == 0:
		if a.keys = a.databases.Held(name, nil); len(a.keys) == 0 || w.at.Before(a.next) {
			return
		}
		a.state, a.sent = 1, w.at
	case a.state == 1:
		a.state, a.wanted, a.server = 2, nil, (&backend{primary: w.primary}).identity()
		for resource, key := range lockKeys {
			if n, _ := strconv.ParseInt(key, 10, 64); slices.Contains(a.keys, n) && w.wanted(resource) {
				a.wanted = append(a.wanted, n)
			}
		}
	case w.dice.n(16) == 15: // no answer comes
		a.state, a.next = 0, w.at.Add(time.Second)
		a.databases.SetLasting(name, false)
	default:
		a.state, a.next = 0, w.at.Add(20*time.Millisecond)
		if news, _ := a.databases.Answered(name, a.server, a.keys, a.wanted, a.sent); news {
			for _, p := range w.players {
				for _, t := range p.hops() {
					t.due = time.Time{}
				}
			}
		}
	}
}

func (t *taker) move(w *world) {
	switch {
	case t.waits == nil && w.left > 0 && w.dice.n(12) == 0:
		resource := pick(w.dice, "a", "a", "b", "lease")
		t.waits = &takeover{by: t.name, resource: resource, token: w.next(resource, w.dice) + int64(w.dice.n(2)), began: w.at}
		w.announce(t.waits)
	case t.waits == nil:
	case t.sealed:
		w.known[t.waits.resource] = max(w.known[t.waits.resource], t.waits.token)
		w.step(model.Granted, t.name, t.waits.resource, t.waits.token)
		t.waits, t.sealed = nil, false
	default:
		for _, p := range w.players {
			p.idlesInTheWay(t.waits)
		}
		over, sealed := w.seal(t.waits, w.at)
		if t.sealed = sealed; over && !sealed {
			t.waits = nil
		}
	}
}

var anyToken = regexp.MustCompile(`\b(a|b|lease)=([1-4])\b`)

// retell puts tokens into a text in the place of those for a single session: the one that is
// current, as far as anybody has been told, or for 3 the one before.
func (w *world) retell(text string) string {
	if strings.Contains(text, decoy) {
		return text
	}
	return anyToken.ReplaceAllStringFunc(text, func(pair string) string {
		resource, token, _ := strings.Cut(pair, "=")
		known := w.known[resource]
		if token == "3" {
			known = max(1, known-1)
		}
		return fmt.Sprint(resource, "=", known)
	})
}

// tale is what led to a fault.
func (w *world) tale() string {
	text := fmt.Sprintf("%s\nmajor %d, hold %s, %+v", w.violated, w.setup.major, w.setup.hold, w.setup.policy)
	for _, p := range w.players {
		if strings.Contains(w.violated, p.server.id) {
			text += fmt.Sprintf("\n%s began with %q", p.server.id, p.server.initial) + p.server.tale()
		}
	}
	text += "\nthe last steps were"
	for _, s := range w.trace[max(0, len(w.trace)-40):] {
		text += "\n\t" + s.String()
	}
	return text
}

// smaller leaves out messages that the fault doesn't need, as far as it comes in some seconds.
func smaller(seed uint64, size int, found *world) *world {
	for again, until := true, time.Now().Add(5*time.Second); again; {
		again = false
		for chunk := max(1, found.messages/4); chunk > 0; chunk /= 2 {
			for from := 0; from < found.messages; from += chunk {
				skip := maps.Clone(found.skip)
				if skip == nil {
					skip = map[int]bool{}
				}
				for n := from; n < from+chunk; n++ {
					skip[n] = true
				}
				if len(skip) == len(found.skip) || time.Now().After(until) {
					continue
				}
				if w := play(seed, size, found.broken, skip); w.violated != "" {
					found, again = w, true
				}
			}
		}
	}
	return found
}

// play runs the world of a seed.
func play(seed uint64, size int, broken defects, skip map[int]bool) *world {
	w := newWorld(seed, size, broken, skip)
	w.run()
	return w
}
