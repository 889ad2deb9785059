package api

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/follow"
)

const (
	// feedLimit is how many events, and how many resources, one look finds at most.
	feedLimit = 1000
	// replayed is how many events are kept for streams that come back.
	replayed = 2 * feedLimit
	// queued is how many looks a stream may be behind.
	queued = 16
	// lingering is how long the feed goes on asking when the last stream has gone, so that
	// a page that comes back has missed nothing.
	lingering = time.Minute
)

// stream is one reader of the feed: it gets what is to be written, shared by all. It is
// closed when it falls behind.
type stream chan []byte

// feed asks the database for new events and changes, once for all streams, while there are any.
type feed struct {
	// heartbeats is how often a stream is written to at least, and its caller's token looked
	// at again.
	heartbeats time.Duration
	pause      time.Duration

	mu      sync.Mutex
	streams map[stream]bool
	running bool
	left    time.Time // when the last stream has gone
	// epoch tells apart the numbers of one time of asking from those of another.
	epoch string
	last  int64    // the number of the last event
	kept  [][]byte // the last events, as they are written
	state health
}

// health is the state of the database, as streams get it.
type health struct {
	At       time.Time `json:"at"`
	Database string    `json:"database"` // ok or unavailable, "" before the first look
	Detail   string    `json:"detail,omitempty"`
}

func newFeed() *feed {
	return &feed{pause: follow.Pause, heartbeats: 15 * time.Second, streams: map[stream]bool{}}
}

// join adds a stream, or returns nil if most streams are open. begin is to be written first:
// the events after the one with the id lastSeen, or a gap if they may not be kept. If start
// is set, the caller must run the feed.
func (f *feed) join(most int, lastSeen string) (joined stream, begin []byte, start bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.streams) >= most {
		return nil, nil, false
	}
	if start = !f.running; start {
		f.running, f.state = true, health{}
		f.epoch, f.last, f.kept = strconv.FormatInt(time.Now().UnixNano(), 36), 0, nil
	}
	joined = make(stream, queued)
	f.streams[joined] = true
	begin = fmt.Appendf(nil, "retry: %d\n\n", retryAfter.Milliseconds())
	if f.state.Database != "" {
		begin = append(begin, f.beat()...)
	}
	return joined, append(begin, f.after(lastSeen)...), start
}

// after is what came after the event with an id, or a gap if that may not be kept.
func (f *feed) after(id string) (text []byte) {
	if id == "" {
		return nil
	}
	epoch, digits, _ := strings.Cut(id, "-")
	number, err := strconv.ParseInt(digits, 10, 64)
	missed := f.last - number
	if err != nil || epoch != f.epoch || missed < 0 || missed > int64(len(f.kept)) {
		return encode("", "gap", struct{}{})
	}
	for _, event := range f.kept[int64(len(f.kept))-missed:] {
		text = append(text, event...)
	}
	return text
}

func (f *feed) leave(s stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.remove(s)
}

func (f *feed) remove(s stream) {
	if delete(f.streams, s); len(f.streams) == 0 {
		f.left = time.Now()
	}
}

// send gives all streams a text; one that has no room for it is ended.
func (f *feed) send(text []byte) {
	for s := range f.streams {
		select {
		case s <- text:
		default:
			f.remove(s)
			close(s)
		}
	}
}

// keep makes an event of a value, and keeps it for a while.
func (f *feed) keep(kind string, value any) []byte {
	f.last++
	text := encode(fmt.Sprintf("%s-%d", f.epoch, f.last), kind, value)
	if len(f.kept) == replayed {
		copy(f.kept, f.kept[1:])
		f.kept = f.kept[:replayed-1]
	}
	f.kept = append(f.kept, text)
	return text
}

// encode words an event. Its data is JSON, which has no line break.
func encode(id, kind string, value any) []byte {
	data, err := json.Marshal(value)
	if err != nil { // no value has what can't be written
		kind, data = "gap", []byte("{}")
	}
	var text []byte
	if id != "" {
		text = fmt.Appendf(text, "id: %s\n", id)
	}
	return fmt.Appendf(text, "event: %s\ndata: %s\n\n", kind, data)
}

// beat is a heartbeat, by which a stream is known to be alive.
func (f *feed) beat() []byte {
	state := f.state
	state.At = time.Now().UTC()
	return encode("", "heartbeat", state)
}

func (f *feed) heartbeat() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state.Database == "" {
		return []byte(":\n\n") // a comment
	}
	return f.beat()
}

// run asks the database until there was no stream for a while, or ctx ends.
func (f *feed) run(ctx context.Context, database fence.Querier) {
	follower := follow.Follower{Filter: fence.EventFilter{Limit: feedLimit}}
	tick := time.NewTicker(f.pause)
	defer tick.Stop()
	for first := true; !f.stopped(ctx); {
		if err := f.look(ctx, &follower, database, first); err != nil {
			f.report(health{Database: "unavailable", Detail: problemOf(err).Detail})
		} else {
			first = false
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// stopped reports whether it is time to stop. If so, the next stream must run the feed
// again.
func (f *feed) stopped(ctx context.Context) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	over := ctx.Err() != nil || len(f.streams) == 0 && time.Since(f.left) > lingering
	f.running = !over
	return over
}

// look sends what is new to all streams; the first one only notes what is there.
func (f *feed) look(ctx context.Context, follower *follow.Follower, database fence.Querier, first bool) error {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	since, err := follower.Since(ctx, database)
	if err != nil {
		return err
	}
	events, err := follower.Events(ctx, database, since)
	if err != nil {
		return err
	}
	changes, err := follower.Resources(ctx, database, since, feedLimit)
	if err != nil {
		return err
	}
	f.report(health{Database: "ok"})
	if !first {
		f.tell(events, changes)
	}
	return nil
}

func (f *feed) tell(events []fence.Event, changes []follow.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var text []byte
	if len(events) >= feedLimit || len(changes) >= feedLimit {
		text = append(text, f.keep("gap", struct{}{})...)
	}
	for _, e := range events {
		text = append(text, f.keep("history", eventOf(e))...)
	}
	for _, c := range changes {
		text = append(text, f.keep("resource", changeOf(c))...)
	}
	if len(text) > 0 {
		f.send(text)
	}
}

// report notes the state of the database, and sends a new one to all streams.
func (f *feed) report(is health) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.state
	if f.state = is; was.Database != is.Database {
		f.send(f.beat())
	}
}

// resourceChange is a resource after a change.
type resourceChange struct {
	Resource  string      `json:"resource"`
	Token     fence.Token `json:"token"`
	TokenText string      `json:"token_text"`
	Holder    string      `json:"holder,omitempty"`
	Since     *time.Time  `json:"since,omitempty"`
	Mode      string      `json:"mode"`
}

func changeOf(c follow.Change) resourceChange {
	return resourceChange{string(c.Resource), c.Token, c.Token.String(), c.Holder, utc(c.GrantedAt), string(c.Mode)}
}
