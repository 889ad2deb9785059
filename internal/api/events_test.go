package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
)

// sent is an event of a stream.
type sent struct {
	id, kind string
	data     map[string]any
}

// reader is a client of a stream.
type reader struct {
	*testing.T
	lines  *bufio.Scanner
	cancel context.CancelFunc
	last   string // the id that came last
}

// listen opens a stream and returns when the server has registered it.
func (w *world) listen(t *testing.T, lastSeen string) *reader {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	q := request{method: http.MethodGet, path: "/v1/events"}
	if lastSeen != "" {
		q.header = map[string]string{"Last-Event-ID": lastSeen}
	}
	response, err := w.http.Client().Do(w.request(t, ctx, q))
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("the stream is answered with %s", response.Status)
	}
	t.Cleanup(func() {
		cancel()
		_ = response.Body.Close()
	})
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	return &reader{T: t, lines: lines, cancel: cancel}
}

// next returns the next event other than a heartbeat, and checks it against openapi.yaml.
func (r *reader) next() sent {
	r.Helper()
	for {
		if s := r.any(); s.kind != "heartbeat" {
			return s
		}
	}
}

func (r *reader) any() (s sent) {
	r.Helper()
	for r.lines.Scan() {
		name, value, _ := strings.Cut(r.lines.Text(), ": ")
		switch name {
		case "id":
			s.id, r.last = value, value
		case "event":
			s.kind = value
		case "data":
			if err := json.Unmarshal([]byte(value), &s.data); err != nil {
				r.Fatalf("%v: %s", err, value)
			}
		case "":
			if s.kind == "" {
				continue // retry, or a comment
			}
			schema := map[string]string{"history": "event", "resource": "resource_change", "heartbeat": "heartbeat", "gap": ""}
			if name, known := schema[s.kind]; !known {
				r.Errorf("an event %s", s.kind)
			} else if name != "" {
				if err := spec.doc.Components.Schemas[name].Value.VisitJSON(s.data); err != nil {
					r.Errorf("%s isn't as the file says: %v", s.kind, err)
				}
			}
			return s
		}
	}
	r.Fatalf("the stream has ended: %v", r.lines.Err())
	return s
}

// begun waits until the feed reports everything that happens.
func (r *reader) begun() *reader {
	r.Helper()
	for {
		if s := r.any(); s.kind == "heartbeat" && s.data["database"] == "ok" {
			return r
		}
	}
}

func (r *reader) expect(want ...string) {
	r.Helper()
	for _, want := range want {
		s := r.next()
		if got := fmt.Sprint(s.kind, " ", s.data["kind"], " ", s.data["resource"], " ", s.data["token_text"], " ", s.data["application"]); got != want {
			r.Errorf("told %q, want %q", got, want)
		}
	}
}

func TestEventsAreStreamed(t *testing.T) {
	t.Parallel()
	_, token := tokenFile(t, namedTokens)
	w := serve(t, "postgres", func(o *Options) { o.Token = token })
	w.token = leaseSecret
	w.post(t, path("before", "acquire"), `{"holder":"worker-a"}`).want(200, "")
	first, second := w.listen(t, "").begun(), w.listen(t, "").begun()
	w.post(t, path("orders", "acquire"), `{"holder":"worker-a"}`).want(200, "")
	for _, r := range []*reader{first, second} {
		r.expect("history handoff orders 1 wirefence-api/bob", "resource <nil> orders 1 <nil>")
	}
	seen := first.last
	first.cancel()
	w.token = operateSecret
	w.post(t, path("orders", "revoke"), `{"reason":"it is stuck"}`).want(200, "")
	second.expect("history revocation orders 2 wirefence-api/carol", "resource <nil> orders 2 <nil>")
	// A stream that comes back gets the events that it has missed, if they are still kept.
	w.listen(t, seen).expect("history revocation orders 2 wirefence-api/carol", "resource <nil> orders 2 <nil>")
	again := w.listen(t, second.last).begun()
	w.patch(t, path("orders", ""), `{"reason":"why","mode":"shadow"}`).want(200, "")
	if s := again.next(); s.kind != "resource" || s.data["mode"] != "shadow" {
		t.Errorf("told %v", s)
	}
	for _, unknown := range []string{"x-1", "7", "-1", strings.Split(seen, "-")[0] + "-999999", strings.Split(seen, "-")[0] + "--1"} {
		if s := w.listen(t, unknown).next(); s.kind != "gap" || len(s.data) > 0 {
			t.Errorf("after %s: %v", unknown, s)
		}
	}
}

func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	w := serve(t, "postgres", func(o *Options) { o.MaxStreams = 2 })
	first := w.listen(t, "").begun()
	w.listen(t, "").begun()
	w.get(t, "/v1/events").want(429, "too-many-streams")
	first.cancel()
	stack.Eventually(t, "the stream is over", func() bool { return testutil.ToFloat64(w.metrics.streams) == 1 })
	w.listen(t, "").begun()
	w.send(t, request{method: http.MethodGet, path: "/v1/events?since=1", beyond: true}).want(400, "invalid-request")
}

// A stream that isn't read is ended, and doesn't delay the others.
func TestASlowReaderIsDropped(t *testing.T) {
	t.Parallel()
	w := serve(t, "postgres", nil)
	slow, err := net.Dial("tcp", w.http.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	fmt.Fprint(slow, "GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
	stack.Eventually(t, "the stream is there", func() bool { return testutil.ToFloat64(w.metrics.streams) == 1 })
	large := []byte(":" + strings.Repeat("x", 1<<20) + "\n\n")
	for range 3 * queued {
		w.feed.mu.Lock()
		w.feed.send(large)
		w.feed.mu.Unlock()
	}
	stack.Eventually(t, "the reader is dropped", func() bool { return testutil.ToFloat64(w.metrics.streams) == 0 })
	w.listen(t, "").begun()
}

// Removing a token ends the streams that it opened.
func TestAStreamEndsWithItsToken(t *testing.T) {
	t.Parallel()
	file, token := tokenFile(t, namedTokens)
	w := serve(t, "postgres", func(o *Options) { o.Token = token })
	w.feed.heartbeats = 10 * time.Millisecond
	w.token = readSecret
	gone := w.listen(t, "").begun()
	w.token = operateSecret
	stays := w.listen(t, "").begun()
	replace(t, file, "carol operate "+operateSecret+"\n")
	if err := token.Reload(); err != nil {
		t.Fatal(err)
	}
	for gone.lines.Scan() {
	}
	if err := gone.lines.Err(); err != nil {
		t.Error(err)
	}
	stays.begun()
}

// failing is a database that fails while down is set, and counts the queries.
type failing struct {
	fence.Querier
	down  atomic.Bool
	asked atomic.Int64
}

type noRow struct{}

func (noRow) Scan(...any) error { return errors.New("no answer") }

func (f *failing) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	f.asked.Add(1)
	if f.down.Load() {
		return noRow{}
	}
	return f.Querier.QueryRow(ctx, sql, args...)
}

func TestStreamsOutliveTheDatabase(t *testing.T) {
	t.Parallel()
	database := &failing{}
	w := serve(t, "postgres", func(o *Options) {
		database.Querier = o.Database
		o.Database = database
	})
	r := w.listen(t, "").begun()
	database.down.Store(true)
	if s := r.any(); s.kind != "heartbeat" || s.data["database"] != "unavailable" || s.data["detail"] == "" {
		t.Errorf("told %v", s)
	}
	if _, err := fence.Seal(t.Context(), w.pool, fence.Grant{Resource: "orders", Token: 7, Holder: "a/1"}); err != nil {
		t.Fatal(err)
	}
	database.down.Store(false)
	r.begun()
	r.expect("history handoff orders 7 own", "resource <nil> orders 7 <nil>")
}

// A store that is away is told of at once. Then whether leases are held is unknown, and nobody
// waits for it.
func TestAStoreThatIsAway(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	w := serve(t, "redis", func(o *Options) {
		o.StoreDown = func() error {
			if away.Load() {
				return errors.New("no answer within 2s")
			}
			return nil
		}
		o.Counts = "redis"
	})
	if _, err := fence.Seal(t.Context(), w.pool, fence.Grant{Resource: "orders", Token: 7, Holder: "a/1", Source: "redis"}); err != nil {
		t.Fatal(err)
	}
	if _, err := fence.Seal(t.Context(), w.pool, fence.Grant{Resource: "others", Token: 7, Holder: "a/1", Source: "etcd"}); err != nil {
		t.Fatal(err)
	}
	held := func() string {
		t.Helper()
		listed := w.get(t, "/v1/resources?leases=true").want(200, "").fields["resources"].([]any)
		all := []any{w.get(t, path("orders", "")).want(200, "").fields["held"]}
		for _, one := range listed {
			all = append(all, one.(map[string]any)["held"])
		}
		return fmt.Sprint(all)
	}
	if got := held(); got != "[false false <nil>]" {
		t.Errorf("held: %s", got)
	}
	r := w.listen(t, "").begun()
	away.Store(true)
	if s := r.any(); s.kind != "heartbeat" || s.data["store"] != "unavailable" || s.data["store_detail"] != "no answer within 2s" || s.data["database"] != "ok" {
		t.Errorf("told %v", s)
	}
	if got := held(); got != "[<nil> <nil> <nil>]" {
		t.Errorf("with the store away, held: %s", got)
	}
	away.Store(false)
	if s := r.any(); s.data["store"] != "ok" {
		t.Errorf("told %v", s)
	}
}

// All streams share one poll of the database.
func TestOneFollowerForAllStreams(t *testing.T) {
	t.Parallel()
	database := &failing{}
	w := serve(t, "postgres", func(o *Options) {
		database.Querier = o.Database
		o.Database = database
	})
	var readers []*reader
	for range 200 {
		readers = append(readers, w.listen(t, "").begun())
	}
	before, began := database.asked.Load(), time.Now()
	for i := range 3 {
		if _, err := fence.Seal(t.Context(), w.pool, fence.Grant{Resource: "orders", Token: fence.Token(i + 1), Holder: fmt.Sprintf("%d/1", i)}); err != nil {
			t.Fatal(err)
		}
		for _, r := range readers {
			r.expect(fmt.Sprintf("history handoff orders %d own", i+1), fmt.Sprintf("resource <nil> orders %d <nil>", i+1))
		}
	}
	if asked, most := database.asked.Load()-before, int64(time.Since(began)/w.feed.pause)+2; asked > most {
		t.Errorf("the database was asked %d times, of %d", asked, most)
	}
	w.EndStreams()
	for _, r := range readers {
		for r.lines.Scan() {
		}
		if err := r.lines.Err(); err != nil {
			t.Errorf("the end of a stream: %v", err)
		}
	}
}
