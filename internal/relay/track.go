package relay

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/adopt"
)

// placeOf is a lock in one database of the server.
type placeOf struct {
	db  int
	key string
}

// track follows a lock in one database of the server, over all connections of the application.
type track struct {
	*lock
	db    int
	state string // the key of its state: wirefence:{db:KEY}
	book  *adopt.Book

	mu      sync.Mutex
	token   fence.Token   // of the last lease that began here; 0 for none
	holder  string        // of it, as the scripts name holders
	pending []fence.Token // grants that are being sealed
	looks   int64         // the number of the newest look
	rival   string        // the value of another sidecar's grant that the application would have set, too
}

func newTrack(l *lock, db int, book *adopt.Book) *track {
	return &track{lock: l, db: db, state: "wirefence:{" + strconv.Itoa(db) + ":" + l.key + "}", book: book}
}

// look is what the script behind a command has seen of a lock.
type look struct {
	granted bool
	token   fence.Token
	own     bool // the token was counted for this sidecar
	rival   bool
	holder  string
	until   time.Time // by the clock from before the command was sent; zero for no end
	number  int64
}

// fieldsOfLook is how many texts the script returns for a lock.
const fieldsOfLook = 7

// readLooks reads the answer of the script behind a command that was sent then.
func readLooks(reply []byte, n int, sent time.Time) (looks []look, ok bool) {
	fields, ok := elements(reply)
	if !ok || len(fields) != n*fieldsOfLook {
		return nil, false
	}
	for f := fields; len(f) > 0; f = f[fieldsOfLook:] {
		token, err := strconv.ParseInt(bulk(f[1]), 10, 64)
		ttl, err2 := strconv.ParseInt(bulk(f[5]), 10, 64)
		number, err3 := strconv.ParseInt(bulk(f[6]), 10, 64)
		if err != nil || err2 != nil || err3 != nil || token < 0 {
			return nil, false
		}
		l := look{granted: bulk(f[0]) == "1", token: fence.Token(token), own: bulk(f[2]) == "1", rival: bulk(f[3]) == "1", holder: bulk(f[4]), number: number}
		if ttl >= 0 {
			l.until = sent.Add(min(time.Duration(ttl), maxTTL) * time.Millisecond)
		}
		looks = append(looks, l)
	}
	return looks, true
}

// maxTTL is the longest time to live that counts, in milliseconds: 100 years.
const maxTTL = 100 * 365 * 24 * 3600 * 1000

// known returns the tokens that this sidecar holds or seals, each between blanks.
func (t *track) known() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	b.WriteByte(' ')
	for _, token := range t.pending {
		b.WriteString(token.String() + " ")
	}
	if t.token != 0 && t.book.Holds(t.resource, t.token) {
		b.WriteString(t.token.String() + " ")
	}
	return b.String()
}

// note records a look. A grant is pending from then on. Otherwise the lease is extended, or it ends;
// an older look than the newest one changes nothing.
func (t *track) note(l look) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case l.granted:
		t.looks, t.rival = l.number, ""
		t.pending = append(t.pending, l.token)
		return
	case l.number < t.looks:
		return
	}
	t.looks = l.number
	if l.rival {
		t.rival = l.holder
	} else if t.rival != l.holder {
		t.rival = ""
	}
	switch {
	case t.token == 0:
	case l.holder == "":
		t.endLocked("the lock was released")
	case !l.own || l.token != t.token || l.holder != t.holder:
		t.endLocked("the lock is another holder's")
	default:
		t.book.Extend(t.resource, t.token, l.until)
	}
}

// endLocked ends the lease. The caller holds mu.
func (t *track) endLocked(reason string) {
	if t.token != 0 {
		t.book.End(t.resource, t.token, reason)
		t.token, t.holder = 0, ""
	}
}

// end ends the lease, of whatever token.
func (t *track) end(reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endLocked(reason)
}

// raised records that a grant that is being sealed has another token.
func (t *track) raised(from, to fence.Token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetLocked(from)
	t.pending = append(t.pending, to)
}

// settle ends a seal, and begins the lease if that was successful. It reports whether it began.
func (t *track) settle(token fence.Token, holder string, lease *adopt.Lease) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetLocked(token)
	if lease == nil || !t.book.Begin(*lease) {
		return false
	}
	t.token, t.holder = token, holder
	return true
}

func (t *track) forgetLocked(token fence.Token) {
	t.pending = slices.DeleteFunc(t.pending, func(p fence.Token) bool { return p == token })
}

// rivalValue returns the value that the application may take for its own: "" for none.
func (t *track) rivalValue() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimPrefix(t.rival, "=")
}

// abandon ends what was made of a grant, and returns its token, another one than at first if it was
// raised: 0 if it was abandoned before.
func (t *track) abandon(l look) fence.Token {
	t.mu.Lock()
	defer t.mu.Unlock()
	if slices.Contains(t.pending, l.token) {
		t.forgetLocked(l.token)
		return l.token
	}
	if t.token >= l.token && t.holder == l.holder {
		token := t.token
		t.endLocked("the application didn't get the reply to its command")
		return token
	}
	return 0
}
