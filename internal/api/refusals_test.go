package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient/redis"
)

// valid has a valid request of each operation that causes no grant.
var valid = map[string]string{
	"acquire": `{"holder":"worker-a"}`,
	"renew":   `{"grant_id":"a/b"}`,
	"release": `{"grant_id":"a/b"}`,
	"revoke":  `{}`,
	"declare": `{"reason":"why"}`,
	"change":  `{"reason":"why","mode":"shadow"}`,
	"check":   `{"fence":"checked=1"}`,

	"begin_effect": `{"fence":"checked=1","max_seconds":0.1}`,
}

// each sends the valid request of each operation.
func each(t *testing.T, do func(t *testing.T, operation string, q request)) {
	for _, route := range routes {
		t.Run(route.operation, func(t *testing.T) {
			do(t, route.operation, request{method: route.method, path: strings.NewReplacer("{resource}", "orders", "{effect}", "none").Replace(route.path), body: valid[route.operation]})
		})
	}
}

// ofTheProcess are the operations that need neither a store nor a database.
var ofTheProcess = []string{"openapi", "whoami", "about", "series"}

func tokenFile(t *testing.T, text string) (file string, token *Token) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "token")
	replace(t, file, text)
	token, err := ReadToken(file, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return file, token
}

func replace(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

const secret = "dGhpcyBpcyBhIHNlY3JldA=="

func TestATokenIsRequired(t *testing.T) {
	t.Parallel()
	_, token := tokenFile(t, secret+"\n")
	for _, loopback := range []bool{true, false} {
		w := serve(t, "postgres", func(o *Options) { o.Token, o.Loopback = token, loopback })
		each(t, func(t *testing.T, operation string, q request) {
			for _, presented := range []string{"", "Bearer", "Bearer ", "Bearer " + secret + "x", "Bearer " + secret[1:], "Basic " + secret, secret} {
				q.header = map[string]string{"Authorization": presented}
				if refused := w.send(t, q).want(401, "token-required"); !strings.HasPrefix(refused.header.Get("WWW-Authenticate"), "Bearer") {
					t.Error("the answer doesn't ask for a token")
				}
			}
		})
		w.token = secret
		w.send(t, request{method: "GET", path: "/v1/openapi.yaml", host: "wirefence.internal"}).want(200, "")
		w.get(t, "/v1/resources").want(200, "")
		if strings.Contains(w.log.String(), secret[:8]) {
			t.Error("the token is in the log")
		}
	}
}

func callerWith(token *Token, secret string) (caller, bool) {
	r, _ := http.NewRequest("GET", "/", nil)
	r.Header.Set("Authorization", "bearer "+secret)
	return token.caller(r)
}

func TestTokensChange(t *testing.T) {
	t.Parallel()
	const other = "bmV3LXRva2VuLXRoYXQtaXMtbG9uZw"
	file, token := tokenFile(t, "\n  "+secret+"  \r\n\n")
	presents := func(text string) bool {
		_, known := callerWith(token, text)
		return known
	}
	if !presents(secret) || presents(other) || presents("") {
		t.Error("at first")
	}
	replace(t, file, secret+"\n"+other)
	if err := token.Reload(); err != nil || !presents(secret) || !presents(other) {
		t.Errorf("with both: %v", err)
	}
	replace(t, file, other)
	stack.Eventually(t, "the file is read again without being told", func() bool { return !presents(secret) && presents(other) })
	for _, wrong := range []string{
		"", "\n\n", "short", secret + "\nwith blanks in it all over", "with-umlauts-äöüäöüäöü", strings.Repeat("a", maxTokenFile+1),
		secret + " " + other, "alice write " + secret, "alice Read " + secret, "alice read lease " + secret, "älice read " + secret, "alice read short",
		strings.Repeat("a", maxCaller+1) + " read " + secret, "alice read " + secret + "\nbob read " + secret, secret + "\nalice read " + secret,
	} {
		replace(t, file, wrong)
		err := token.Reload()
		if err == nil || !strings.Contains(err.Error(), file) || len(wrong) > 8 && strings.Contains(err.Error(), wrong[:8]) {
			t.Errorf("%.30q: %v", wrong, err)
		}
		if !presents(other) {
			t.Errorf("%.30q: the last good file doesn't count on", wrong)
		}
	}
	if _, err := ReadToken(file+".none", slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a file that isn't there")
	}
}

const (
	readSecret, leaseSecret     = "cmVhZC10b2tlbi1vZi1hbGljZQ", "bGVhc2UtdG9rZW4tb2YtYm9i"
	operateSecret, otherOperate = "b3BlcmF0ZS10b2tlbi1vZi1jYXJvbA", "YW5vdGhlci10b2tlbi1vZi1jYXJvbA"
	namedTokens                 = "alice  read " + readSecret + "\n\tbob\tlease " + leaseSecret + "\ncarol operate " + operateSecret + "\ncarol operate " + otherOperate + "\n" + secret + "\n"
)

func TestAScopeIsRequired(t *testing.T) {
	t.Parallel()
	_, token := tokenFile(t, namedTokens)
	w := serve(t, "postgres", func(o *Options) { o.Token = token })
	each(t, func(t *testing.T, operation string, q request) {
		at := slices.IndexFunc(routes, func(r route) bool { return r.operation == operation })
		for presented, has := range map[string]scope{readSecret: scopeRead, leaseSecret: scopeLease, operateSecret: scopeOperate, secret: scopeOperate} {
			q.header = map[string]string{"Authorization": "Bearer " + presented}
			answer := w.send(t, q)
			if needs := routes[at].needs; has >= needs {
				if answer.status == 401 || answer.status == 403 {
					t.Errorf("with %s: %s", has, answer.text)
				}
			} else if answer.want(403, "scope-required"); answer.fields["required_scope"] != needs.String() || !strings.Contains(answer.string("detail"), needs.String()) {
				t.Errorf("with %s: %s", has, answer.text)
			}
		}
	})
	if log := w.log.String(); !strings.Contains(log, "its scope does not permit it") || !strings.Contains(log, "caller=alice") {
		t.Errorf("the log:\n%s", log)
	}
}

// Without a token file any user of the machine may acquire leases, and nobody may operate.
func TestOperatorsNeedAToken(t *testing.T) {
	t.Parallel()
	w := serve(t, "postgres", nil)
	w.post(t, path("orders", "acquire"), `{"holder":"worker-a"}`).want(200, "")
	each(t, func(t *testing.T, operation string, q request) {
		at := slices.IndexFunc(routes, func(r route) bool { return r.operation == operation })
		answer := w.send(t, q)
		if routes[at].needs < scopeOperate {
			if answer.status == 401 || answer.status == 403 {
				t.Errorf("refused: %s", answer.text)
			}
		} else if answer.want(403, "scope-required"); !strings.Contains(answer.string("detail"), "WIREFENCE_ADMIN_TOKEN_FILE") {
			t.Errorf("it isn't said what to set: %s", answer.text)
		}
	})
}

// The log, the history and the record of changes name the caller.
func TestCallersAreNamed(t *testing.T) {
	onEach(t, func(o *Options) { _, o.Token = tokenFile(t, namedTokens) }, func(t *testing.T, w *world) {
		name := fresh(t)
		as := func(secret string) *world { w.token = secret; return w }
		as(leaseSecret).post(t, path(name, "acquire"), `{"holder":"worker-a"}`).want(200, "")
		as(operateSecret).post(t, path(name, "revoke"), `{"reason":"it is stuck"}`).want(200, "")
		events := eventFields(as(readSecret).get(t, "/v1/history").want(200, ""), "kind", "application", "reason")
		if want := "[handoff wirefence-api/bob granted revocation wirefence-api/carol it is stuck]"; fmt.Sprint(events) != want {
			t.Errorf("the history has %v, want %s", events, want)
		}
		if log := w.log.String(); !strings.Contains(log, "caller=bob") || !strings.Contains(log, "caller=carol") {
			t.Errorf("the log:\n%s", log)
		}
		// Without a caller, the name is the pool's own.
		var application string
		if err := w.pool.QueryRow(t.Context(), "SHOW application_name").Scan(&application); err != nil || application != "own" {
			t.Errorf("the pool's own is %q, %v", application, err)
		}
	})
}

// Without a token file, only loopback is served.
func TestWithoutATokenOnlyLoopbackIsServed(t *testing.T) {
	t.Parallel()
	w := serve(t, "postgres", func(o *Options) { o.Loopback = false })
	if !strings.Contains(w.Refusal(), "WIREFENCE_ADMIN_TOKEN_FILE") {
		t.Errorf("it isn't said what to set: %q", w.Refusal())
	}
	each(t, func(t *testing.T, _ string, q request) {
		q.header = map[string]string{"Authorization": "Bearer " + secret}
		if refused := w.send(t, q).want(403, "token-file-required"); !strings.Contains(refused.string("detail"), "WIREFENCE_ADMIN_TOKEN_FILE") {
			t.Errorf("it isn't said what to set: %s", refused.text)
		}
	})
}

// A browser on the machine can reach loopback by another name, and sends the requests of
// foreign pages.
func TestBrowsersAreRefused(t *testing.T) {
	t.Parallel()
	w := serve(t, "postgres", nil)
	each(t, func(t *testing.T, _ string, q request) {
		for _, host := range []string{"evil.example", "evil.example:9433", "127.0.0.1.evil.example", "10.0.0.7:9433", "localhost.evil.example:9433", "[::2]:9433"} {
			q.host = host
			w.send(t, q).want(403, "cross-origin")
		}
		q.host = ""
		for _, header := range [][2]string{
			{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}, {"Origin", "null"}, {"Origin", "http://127.0.0.1:1"},
		} {
			q.header = map[string]string{header[0]: header[1]}
			w.send(t, q).want(403, "cross-origin")
		}
		if q.body == "" {
			return
		}
		for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json2", ""} {
			q.header = map[string]string{"Content-Type": kind}
			w.send(t, q).want(415, "unsupported-media-type")
		}
	})
	for _, host := range []string{"localhost", "LOCALHOST:9433", "127.0.0.1", "127.3.2.1:80", "[::1]:9433", "[::1]"} {
		w.send(t, request{method: "GET", path: "/v1/resources", host: host}).want(200, "")
	}
}

func TestInvalidRequests(t *testing.T) {
	t.Parallel()
	w := serve(t, "postgres", withTokens(t))
	w.token = operateSecret
	long := strings.Repeat("x", 300)
	for operation, bodies := range map[string][]string{
		"acquire": {
			`{}`, `{"holder":""}`, `{"holder":7}`, `{"holder":"` + long + `"}`, `{"holder":"a","more":1}`, `{"Holder":"a"}`, `{"holder":null}`,
			`{"holder":"a","ttl_seconds":0.999}`, `{"holder":"a","ttl_seconds":3600.001}`, `{"holder":"a","ttl_seconds":"15s"}`, `{"holder":"a","ttl_seconds":1e300}`,
			`{"holder":"a","ttl_seconds":-1}`, `{"holder":"a","wait_seconds":-1}`, `{"holder":"a","wait_seconds":61}`, `{"holder":"a","wait_seconds":true}`,
			`{"holder":"a","idempotency_key":"short"}`, `{"holder":"a","idempotency_key":"` + long + `"}`, `{"holder":"a","idempotency_key":"with/slash/in/it/all"}`,
		},
		"renew":   {`{}`, `{"grant_id":""}`, `{"grant_id":"` + long + `"}`, `{"grant_id":"a","ttl_seconds":0}`, `{"grant_id":"a","ttl_seconds":3601}`, `{"grant_id":"a","token":1}`},
		"release": {`{}`, `{"grant_id":1}`, `{"grant_id":"a","ttl_seconds":15}`},
		"declare": {`{}`, `{"reason":""}`, `{"reason":" "}`, `{"reason":"a","last_token":1}`, `{"reason":"a","advance":"never"}`, `{"reason":"a","source":"Redis"}`},
		"change": {
			`{}`, `{"reason":"a"}`, `{"mode":"shadow"}`, `{"reason":"a","mode":""}`, `{"reason":"a","mode":null}`, `{"reason":"a","reuse":"twice"}`, `{"reason":"a","failover":1}`,
			`{"reason":"a","preempt_after_seconds":-1}`, `{"reason":"a","preempt_after_seconds":"5s"}`, `{"reason":"a","preempt_after_seconds":2073601}`,
			`{"reason":"a","last_token":-1}`, `{"reason":"a","last_token":"-1"}`, `{"reason":"a","last_token":1.5}`, `{"reason":"a","last_token":""}`,
			`{"reason":"a","must_name_source":"yes"}`, `{"reason":"a","source":""}`, `{"reason":"` + strings.Repeat("x", 1001) + `","mode":"shadow"}`,
		},
		"check": {`{}`, `{"fence":""}`, `{"fence":7}`, `{"fence":"orders=1","max_seconds":1}`},
		"begin_effect": {
			`{}`, `{"fence":""}`, `{"fence":["orders=1"]}`, `{"fence":"orders=1","max_seconds":0.099}`, `{"fence":"orders=1","max_seconds":60.001}`,
			`{"fence":"orders=1","max_seconds":"3s"}`,
		},
		"revoke": {`{"reason":1}`, `{"reason":"` + long + `"}`, `{"holder":"a"}`},
	} {
		for _, body := range append(bodies, ``, `[]`, `"a"`, `{`, `null`, `7`) {
			q := request{method: http.MethodPost, path: path("orders", operation), body: body}
			switch operation {
			case "check":
				q.path = "/v1/check"
			case "begin_effect":
				q.path = "/v1/effects"
			case "change":
				q.method, q.path = http.MethodPatch, path("orders", "")
			}
			if refused := w.send(t, q).want(400, "invalid-request"); refused.string("detail") == "" {
				t.Errorf("%s %s: no detail", operation, body)
			}
		}
	}
	for _, text := range []string{"34", "orders", "orders=0", "orders=34,orders=35", " "} {
		for _, path := range []string{"/v1/check", "/v1/effects"} {
			w.send(t, request{method: "POST", path: path, body: `{"fence":"` + text + `"}`, beyond: true}).want(400, "invalid-request")
		}
	}
	w.send(t, request{method: "POST", path: "/v1/effects", body: `{"fence":"orders=1","max_seconds":null}`, beyond: true}).want(400, "invalid-request")
	for _, body := range []string{
		`{"holder":"line\nfeed"}`, `{"holder":"a"} {}`, "{\"holder\":\"\xff\xfe\"}", `{"holder":"` + strings.Repeat("ä", 81) + `"}`,
	} {
		w.send(t, request{method: "POST", path: path("orders", "acquire"), body: body, beyond: true}).want(400, "invalid-request")
	}
	each(t, func(t *testing.T, _ string, q request) {
		if q.body != "" {
			large := q
			large.body = `{"holder":"` + strings.Repeat("x", maxBody) + `"}`
			w.send(t, large).want(413, "too-large")
		}
		if !strings.Contains(q.path, "orders") {
			return
		}
		for _, name := range []string{strings.Repeat("x", 256), strings.Repeat("%C3%A4", 128), "%FF", "a%00b"} {
			bad := q
			bad.path, bad.beyond = strings.Replace(q.path, "orders", name, 1), true
			w.send(t, bad).want(400, "invalid-request")
		}
	})
}

func TestWhatIsNotThere(t *testing.T) {
	t.Parallel()
	w := serve(t, "postgres", nil)
	for _, path := range []string{"/v1/", "/v1/nothing", "/v1/resources/a/b", "/v1/resources/a/b/acquire", "/v1/resources//acquire", "/v1//resources", "/v1/resources/../resources"} {
		w.get(t, path).want(404, "no-such-path")
		w.post(t, path, `{}`).want(404, "no-such-path")
	}
	for path, allowed := range map[string]string{"/v1/resources/a/acquire": "POST", "/v1/resources": "GET", "/v1/resources/a": "GET, PATCH", "/v1/openapi.yaml": "GET"} {
		if refused := w.send(t, request{method: "DELETE", path: path}).want(405, "method-not-allowed"); refused.header.Get("Allow") != allowed {
			t.Errorf("%s allows %q", path, refused.header.Get("Allow"))
		}
	}
}

// Without a store and a database, the answer names the missing setting.
func TestMissingSettingsAreNamed(t *testing.T) {
	t.Parallel()
	_, token := tokenFile(t, namedTokens)
	w := serve(t, "", func(o *Options) { o.Database, o.Effects, o.Token = nil, nil, token })
	w.token = operateSecret
	each(t, func(t *testing.T, operation string, q request) {
		if slices.Contains(ofTheProcess, operation) {
			w.send(t, q).want(200, "")
		} else if refused := w.send(t, q).want(503, "not-configured"); !strings.Contains(refused.string("detail"), "WIREFENCE_DATABASE_URL") {
			t.Errorf("it isn't said what to set: %s", refused.text)
		}
	})
}

// The answer distinguishes a store that doesn't answer from one that refuses.
func TestAnUnreachableStore(t *testing.T) {
	t.Parallel()
	own, err := servers.StartRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	leases, err := redis.Open(own.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer leases.Close()
	nowhere, err := pgxpool.New(t.Context(), "postgres://issuer:geheim-77@127.0.0.1:1/x?sslmode=disable&connect_timeout=2")
	if err != nil {
		t.Fatal(err)
	}
	defer nowhere.Close()
	own.Kill()
	_, token := tokenFile(t, namedTokens)
	w := serve(t, "", func(o *Options) {
		o.Store, o.Unsealed, o.Database, o.Effects, o.Token = leases, true, nowhere, nowhere, token
		o.Doctor = func(context.Context) (json.RawMessage, error) { return nil, errors.New("no pool") }
	})
	w.token = operateSecret
	each(t, func(t *testing.T, operation string, q request) {
		if slices.Contains(ofTheProcess, operation) || operation == "events" || operation == "end_effect" {
			return
		}
		refused := w.send(t, q).want(503, "unavailable")
		if refused.header.Get("Retry-After") == "" || strings.Contains(refused.text, "geheim-77") {
			t.Errorf("got %s", refused.text)
		}
	})
	if log := w.log.String(); !strings.Contains(log, "API request failed") || strings.Contains(log, "geheim-77") {
		t.Errorf("the log:\n%s", log)
	}
}

func TestRequestsAreCounted(t *testing.T) {
	t.Parallel()
	w := serve(t, "postgres", nil)
	w.post(t, path("orders", "acquire"), `{"holder":"a"}`).want(200, "")
	w.post(t, path("orders", "acquire"), `{"holder":"a"}`).want(409, "lease-held")
	w.post(t, path("orders", "acquire"), `{"holder":"a"}`).want(409, "lease-held")
	w.get(t, "/v1/none").want(404, "no-such-path")
	for labels, want := range map[[2]string]float64{{"acquire", "200"}: 1, {"acquire", "409"}: 2, {"none", "404"}: 1} {
		if got := testutil.ToFloat64(w.metrics.requests.WithLabelValues(labels[:]...)); got != want {
			t.Errorf("%s: %v", labels, got)
		}
	}
}
