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
	// feedLimit bounds the events, and the changes of resources, that one poll finds.
	feedLimit = 1000
	// replayed is how many events are kept for streams that come back.
	replayed = 2 * feedLimit
	// queued is how many polls a stream may be behind.
	queued = 16
	// feedTime bounds the database's answers to one poll.
	feedTime = 4 * time.Second
	// lingering is how long the feed polls without streams, so that a page that comes back
	// has missed nothing.
	lingering = time.Minute
)

// stream has the texts for one reader of the feed, which all readers share. It is closed
// when the reader falls behind.
type stream chan []byte

// feed polls the database for new events and changes, once for all streams, while there are
// any.
type feed struct {
	storeDown func() error
	// heartbeats is the interval at which an idle stream is written to, and its caller's token
	// is checked again.
	heartbeats time.Duration
	pause      time.Duration

	mu      sync.Mutex
	streams map[stream]bool
	running bool
	left    time.Time // the end of the last stream
	// epoch distinguishes the event numbers of one run of the feed from those of others.
	epoch string
	last  int64    // the number of the last event
	kept  [][]byte // the last events, as they are written
	state health
}

// health is the state of the database and of the lease store, as streams get it.
type health struct {
	At          time.Time `json:"at"`
	Database    string    `json:"database"` // ok or unavailable, "" before the first poll
	Detail      string    `json:"detail,omitempty"`
	Store       string    `json:"store"` // ok or unavailable
	StoreDetail string    `json:"store_detail,omitempty"`
}

const (
	available   = "ok"
	unavailable = "unavailable"
)

func newFeed(storeDown func() error) *feed {
	return &feed{storeDown: storeDown, pause: follow.Pause, heartbeats: 15 * time.Second, streams: map[stream]bool{}}
}

// join adds a stream, or returns nil if limit streams are open. begin is written first:
// the events after the one with the id lastSeen, or a gap if they may not be kept. If start
// is set, the caller must run the feed.
func (f *feed) join(limit int, lastSeen string) (joined stream, begin []byte, start bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.streams) >= limit {
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
		begin = append(begin, f.stateEvent()...)
	}
	return joined, append(begin, f.after(lastSeen)...), start
}

// after returns the events after the one with an id, or a gap if some may not be kept.
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

// send gives all streams a text, and ends those that have no room for it.
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

// keep encodes a value as an event, and keeps it for streams that come back.
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

// encode returns the text of an event. Its data is JSON, without line breaks.
func encode(id, kind string, value any) []byte {
	data, err := json.Marshal(value)
	if err != nil { // no value fails
		kind, data = "gap", []byte("{}")
	}
	var text []byte
	if id != "" {
		text = fmt.Appendf(text, "id: %s\n", id)
	}
	return fmt.Appendf(text, "event: %s\ndata: %s\n\n", kind, data)
}

// stateEvent returns a heartbeat with the present state. The caller holds the lock.
func (f *feed) stateEvent() []byte {
	state := f.state
	state.At = time.Now().UTC()
	return encode("", "heartbeat", state)
}

// heartbeat returns what is written to an idle stream.
func (f *feed) heartbeat() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state.Database == "" {
		return []byte(":\n\n") // a comment
	}
	return f.stateEvent()
}

// run polls the database until there was no stream for a while, or ctx ends.
func (f *feed) run(ctx context.Context, database fence.Querier) {
	follower := follow.Follower{Filter: fence.EventFilter{Limit: feedLimit}}
	tick := time.NewTicker(f.pause)
	defer tick.Stop()
	for first := true; !f.stopped(ctx); {
		if err := f.poll(ctx, &follower, database, first); err != nil {
			f.report(health{Database: unavailable, Detail: problemOf(err).Detail})
		} else {
			first = false
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// stopped reports whether run must end. If so, the next stream runs the feed again.
func (f *feed) stopped(ctx context.Context) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	over := ctx.Err() != nil || len(f.streams) == 0 && time.Since(f.left) > lingering
	f.running = !over
	return over
}

// poll sends new events and changes to all streams. The first poll only finds where to begin.
func (f *feed) poll(ctx context.Context, follower *follow.Follower, database fence.Querier, first bool) error {
	ctx, cancel := context.WithTimeout(ctx, feedTime)
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
	f.report(health{Database: available})
	if !first {
		f.publish(events, changes)
	}
	return nil
}

func (f *feed) publish(events []fence.Event, changes []follow.Change) {
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

// report notes the state of the database and of the lease store, and sends a change to all
// streams.
func (f *feed) report(is health) {
	is.Store = available
	if err := f.storeDown(); err != nil {
		is.Store, is.StoreDetail = unavailable, err.Error()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.state
	if f.state = is; was.Database != is.Database || was.Store != is.Store {
		f.send(f.stateEvent())
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
