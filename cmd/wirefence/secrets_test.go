package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
)

// sights are what others than the holders of leases have seen, each text once.
type sights struct {
	mu    sync.Mutex
	texts map[string]string // where it was seen first
}

func (s *sights) add(where string, texts ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, text := range texts {
		if _, known := s.texts[text]; !known {
			s.texts[text] = where
		}
	}
}

var word = regexp.MustCompile("[^\\s\"'`,;()\\[\\]{}=<>\\\\]+")

// leaks returns where the id of a grant was seen: a word whose hash is known of a grant. So it
// finds ids that never leave a process, too.
func (s *sights) leaks(hashes map[string]bool) (at []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for text, where := range s.texts {
		for _, found := range word.FindAllString(text, -1) {
			for _, id := range []string{found, strings.Trim(found, ".:")} {
				hash := sha256.Sum256([]byte(id))
				if hashes[lockclient.HolderOf(id)] || hashes[hex.EncodeToString(hash[:])] {
					at = append(at, where+": "+id)
				}
			}
		}
	}
	return at
}

// readAll adds what the superuser reads of each table, and of others' statements.
func (s *sights) readAll(t *testing.T, ctx context.Context, conn *pgx.Conn, tables bool) {
	queries := map[string]string{"pg_stat_activity": "SELECT concat_ws(' ', usename, application_name, query) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"}
	if tables {
		rows, _ := conn.Query(ctx, "SELECT c.oid::regclass::text FROM pg_class AS c WHERE c.relnamespace = 'wirefence'::regnamespace AND c.relkind IN ('r', 'v', 'm')")
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			queries[name] = "SELECT t::text FROM " + name + " AS t"
		}
	}
	for where, query := range queries {
		rows, _ := conn.Query(ctx, query)
		texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil && ctx.Err() == nil {
			t.Errorf("%s: %v", where, err)
		}
		s.add(where, texts...)
	}
}

// ask adds the answer to a request.
func (s *sights) ask(t *testing.T, method, url, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		s.add(method+" "+url, lines.Text())
	}
}

// getPaths are the paths of the API that can be read, by its own description, but for that of
// a resource.
func getPaths(t *testing.T, admin string) (paths []string) {
	t.Helper()
	_, description := get(t, "http://"+admin+"/v1/openapi.yaml")
	for _, path := range regexp.MustCompile(`(?m)^  (/v1/\S+):\n(?:    parameters:\n(?:      .*\n)+)?    get:`).FindAllStringSubmatch(description, -1) {
		if path[1] != "/v1/events" && path[1] != "/v1/resources/{resource}" { // the first doesn't end
			paths = append(paths, path[1])
		}
	}
	if len(paths) < 9 {
		t.Fatalf("the API can be read at %q", paths)
	}
	return paths
}

// Nobody but its holder sees the id of a grant, with which one renews and releases a lease.
func TestTheIDOfAGrantIsSeenByItsHolderAlone(t *testing.T) {
	stack.NeedsMore(t, "8 s of CPU")
	onEachStore(t, theIDOfAGrantIsSeenByItsHolderAlone)
}

func theIDOfAGrantIsSeenByItsHolderAlone(t *testing.T, settings []string, resource string) {
	url := strings.TrimPrefix(settings[len(settings)-1], "WIREFENCE_DATABASE_URL=")
	s := &sights{texts: map[string]string{}}
	ctx, stop := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stop()
	conn := stack.Connect(t, url)
	watching.Go(func() {
		for ctx.Err() == nil {
			s.readAll(t, ctx, conn, false)
			<-time.After(10 * time.Millisecond)
		}
	})

	// The leases.
	resource = strings.ReplaceAll(resource, "/", ".")
	resources := map[string]string{"sidecar": resource + "-sidecar", "http": resource + "-http", "lock": resource + "-lock", "sql": resource + "-sql"}
	debug := append(settings, "WIREFENCE_LOG_LEVEL=debug", "WIREFENCE_TTL=3s")
	p := startProxy(t, url, append(debug[:len(debug):len(debug)], "WIREFENCE_LEASE="+resources["sidecar"])...)
	events, err := http.Get("http://" + p.admin + "/v1/events")
	if err != nil {
		t.Fatal(err)
	}
	defer events.Body.Close()
	watching.Go(func() {
		for lines := bufio.NewScanner(events.Body); lines.Scan(); {
			s.add("/v1/events", lines.Text())
		}
	})
	p.stderr.Await(t, "holding the lease")
	status, granted := ask(t, "POST", p.resource(resources["http"], "acquire"), "", `{"holder":"somebody","ttl_seconds":100}`)
	if status != http.StatusOK {
		t.Fatal(status, granted)
	}
	overHTTP, bySQL := granted["grant_id"].(string), ""
	own := stack.Connect(t, url)
	if err := own.QueryRow(t.Context(), "SELECT grant_id FROM wirefence.acquire($1, 'somebody', '1 hour')", resources["sql"]).Scan(&bySQL); err != nil {
		t.Fatal(err)
	}
	locked := start(t, debug, "lock", resources["lock"], "--", "sh", "-c", "echo begun; sleep 60")
	locked.stdout.Await(t, "begun")
	defer func() {
		locked.signal(t, os.Interrupt)
		locked.end(t)
	}()
	// They are renewed. A call that fails says nothing of the id, either.
	if status, renewed := ask(t, "POST", p.resource(resources["http"], "renew"), "", `{"ttl_seconds":100,"grant_id":"`+overHTTP+`"}`); status != http.StatusOK {
		t.Fatal(status, renewed)
	}
	for ttl, fails := range map[string]bool{"1 hour": false, "-1 minute": true} {
		_, err := own.Exec(t.Context(), "SELECT wirefence.renew($1, $2, $3::text::interval)", resources["sql"], bySQL, ttl)
		failure := (*pgconn.PgError)(nil)
		if fails != errors.As(err, &failure) {
			t.Fatal(err)
		}
		if fails {
			s.add("an error", fmt.Sprintf("%+v", *failure))
		}
	}
	renewed := regexp.MustCompile(`wirefence_store_request_seconds_count\{operation="renew"[^}]*\} ([2-9]|\d\d)`)
	stack.Eventually(t, "the sidecar renews its lease", func() bool {
		_, metrics := get(t, "http://"+p.admin+"/metrics")
		return renewed.MatchString(metrics)
	})

	// What others see.
	for _, args := range [][]string{{"status"}, {"status", "-o", "json"}, {"history"}, {"history", "-o", "json"}, {"doctor"}, {"doctor", "-o", "json"}} {
		r := wirefence(t, debug, args...)
		s.add("wirefence "+strings.Join(args, " "), r.stdout, r.stderr)
	}
	for _, path := range append(getPaths(t, p.admin), "/v1/resources?leases=true", "/metrics", "/livez", "/readyz") {
		s.ask(t, "GET", "http://"+p.admin+path, "")
	}
	for what, name := range resources {
		s.ask(t, "GET", strings.TrimSuffix(p.resource(name, ""), "/"), "")
		s.ask(t, "POST", p.resource(name, "acquire"), `{"holder":"a rival"}`)
		s.ask(t, "POST", p.resource(name, "renew"), `{"grant_id":"of/a rival"}`)
		s.ask(t, "POST", p.resource(name, "release"), `{"grant_id":"of/a rival"}`)
		for _, args := range [][]string{
			{"status", name}, {"resource", "show", name}, {"resource", "show", name, "-o", "json"}, {"history", name}, {"check", name + "=1"},
			{"lock", "--wait=100ms", name, "--", "true"},
		} {
			r := wirefence(t, debug, args...)
			s.add("wirefence "+strings.Join(args, " "), r.stdout, r.stderr)
			if args[0] == "lock" && what != "sql" && r.status != 75 {
				t.Errorf("%s: the lease isn't held: %+v", what, r)
			}
		}
	}
	stop()
	_ = events.Body.Close()
	watching.Wait()
	reading := stack.Connect(t, url)
	s.readAll(t, t.Context(), reading, true)
	s.add("the proxy's log", strings.Split(p.stderr.String(), "\n")...)
	s.add("the log of lock", strings.Split(locked.stderr.String(), "\n")...)

	hashes := map[string]bool{}
	rows, _ := reading.Query(t.Context(), "SELECT holder FROM wirefence.resource_locks WHERE holder <> 'somebody' UNION SELECT grant_hash FROM wirefence.leases")
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		hashes[name] = true
	}
	if hash := sha256.Sum256([]byte(bySQL)); !hashes[lockclient.HolderOf(overHTTP)] || !hashes[hex.EncodeToString(hash[:])] || len(hashes) < len(resources) {
		t.Fatalf("the grants are known by %q", names)
	}
	for _, leak := range s.leaks(hashes) {
		t.Error(leak)
	}

	// What was sought can be found.
	for _, planted := range []string{overHTTP, bySQL} {
		if _, err := own.Exec(t.Context(), "SELECT 'it is "+planted+".'"); err != nil {
			t.Fatal(err)
		}
		s := &sights{texts: map[string]string{}}
		s.readAll(t, t.Context(), reading, false)
		if at := s.leaks(hashes); len(at) == 0 {
			t.Errorf("the leak of %s isn't found", planted)
		}
	}
}
