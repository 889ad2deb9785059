package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/pages"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
)

// ask sends a request to a proxy's API and returns what is answered.
func ask(t *testing.T, method, url, token, body string) (status int, fields map[string]any) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil {
		err = json.Unmarshal(text, &fields)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return response.StatusCode, fields
}

func (p *proxyProcess) resource(name, operation string) string {
	return "http://" + p.admin + "/v1/resources/" + name + "/" + operation
}

// A proxy renews and releases a lease that another has granted.
func TestLeasesOverHTTP(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string][]string{"postgres": nil, "redis": {"WIREFENCE_REDIS_URL=" + redisServer(t).URL()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, resource := database(t, true), "http-"+name
			stack.Exec(t, url, "CREATE TABLE jobs (worker text)")
			a, b := startProxy(t, url, settings...), startProxy(t, url, settings...)
			status, granted := ask(t, "POST", a.resource(resource, "acquire"), "", `{"holder":"worker-a"}`)
			if status != 200 || granted["ttl_seconds"] != 15.0 {
				t.Fatalf("%d: %v", status, granted)
			}
			conn := stack.Connect(t, a.url)
			if _, err := conn.Exec(t.Context(), fmt.Sprintf("INSERT INTO jobs VALUES ('a') /*wirefence.token='%s'*/", granted["fence"])); err != nil {
				t.Errorf("the fence is refused: %v", err)
			}
			id := fmt.Sprintf(`{"grant_id":%q}`, granted["grant_id"])
			if status, held := ask(t, "POST", b.resource(resource, "acquire"), "", `{"holder":"worker-b"}`); status != 409 || held["held_by"] != lockclient.HolderOf(granted["grant_id"].(string)) {
				t.Errorf("the other proxy: %d %v", status, held)
			}
			if status, renewed := ask(t, "POST", b.resource(resource, "renew"), "", id); status != 200 {
				t.Errorf("renewed by the other proxy: %d %v", status, renewed)
			}
			if status, released := ask(t, "POST", b.resource(resource, "release"), "", id); status != 200 || released["was_held"] != true {
				t.Errorf("released by the other proxy: %d %v", status, released)
			}
			if status, nowhere := ask(t, "POST", a.resource("", "acquire"), "", `{"holder":"worker-a"}`); status != 404 {
				t.Errorf("without a name: %d %v", status, nowhere)
			}
			wirefence(t, append(issuer(url), settings...), "lock", resource, "--", "true").expect(t, 0) // which has the same leases
			a.stderr.Await(t, "lease granted over HTTP")
			if _, metrics := get(t, "http://"+a.admin+"/metrics"); !regexp.MustCompile(`(?m)^wirefence_api_requests_total\{operation="acquire",status="200"\} 1$`).MatchString(metrics) {
				t.Error("the request isn't counted")
			}
		})
	}
}

// everywhere are settings by which the admin listener isn't on loopback alone.
func everywhere(t *testing.T) (settings []string, admin string) {
	admin = freeAddress(t)
	return []string{"WIREFENCE_ADMIN_LISTEN=" + strings.Replace(admin, "127.0.0.1", "0.0.0.0", 1)}, admin
}

func TestTheTokenFile(t *testing.T) {
	t.Parallel()
	const first, second = "Zmlyc3QtdG9rZW4tMQ", "c2Vjb25kLXRva2VuLTI"
	file := filepath.Join(t.TempDir(), "token")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	settings, admin := everywhere(t)
	settings = append(settings, "WIREFENCE_ADMIN_TOKEN_FILE="+file)
	url := database(t, true)
	base, _, _ := proxySettingsFor(t, url)
	wirefence(t, append(base, settings...), "proxy").expect(t, 2, "WIREFENCE_ADMIN_TOKEN_FILE", file)
	put("short\n")
	wirefence(t, append(base, settings...), "proxy").expect(t, 2, "WIREFENCE_ADMIN_TOKEN_FILE", "16 bytes")
	put(first + "\n")
	p := startProxy(t, url, settings...)
	statusOf := func(token string) int {
		status, _ := ask(t, "GET", "http://"+admin+"/v1/resources", token, "")
		return status
	}
	if got := [3]int{statusOf(""), statusOf(second), statusOf(first)}; got != [3]int{401, 401, 200} {
		t.Errorf("none, another, the token: %v", got)
	}
	put(second + "\n")
	p.signal(t, syscall.SIGHUP)
	p.stderr.Await(t, `"what":["admin token"]`)
	if got := [2]int{statusOf(first), statusOf(second)}; got != [2]int{401, 200} {
		t.Errorf("the former, the new one: %v", got)
	}
	put("")
	p.signal(t, syscall.SIGHUP)
	p.stderr.Await(t, "reloading the admin token")
	if statusOf(second) != 200 {
		t.Error("a file without a token locks everybody out")
	}
	if log := p.stderr.String(); strings.Contains(log, first) || strings.Contains(log, second) {
		t.Errorf("a token is in the log:\n%s", log)
	}
}

// A page whose name its owner has resolve to loopback comes to the listener, but not in.
func TestTheAdminListenerOnLoopbackWantsItsOwnName(t *testing.T) {
	t.Parallel()
	p := startProxy(t, database(t, true))
	for _, path := range []string{"/metrics", "/readyz", "/livez", "/v1/resources", "/elsewhere"} {
		for host, refused := range map[string]bool{"evil.example:9433": true, "127.0.0.1.evil.example": true, "localhost:9433": false, p.admin: false} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.admin+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Host = host
			response, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if (response.StatusCode == http.StatusForbidden) != refused {
				t.Errorf("%s at %s: %s", path, host, response.Status)
			}
		}
	}
	if status, page := get(t, "http://"+p.admin+"/"); status != 200 || !strings.Contains(page, "<title>Wirefence") {
		t.Errorf("/ doesn't lead to the console: %d, %s", status, page)
	}
}

// A stream is no request that the end of the proxy waits for.
func TestAStreamEndsWithTheProxy(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	p := startProxy(t, url)
	response, err := http.Get("http://" + p.admin + "/v1/events")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	await := func(text string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), text) {
				return
			}
		}
		t.Fatalf("the stream has ended without %q: %v", text, lines.Err())
	}
	await(`"database":"ok"`)
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 7, 'worker-a/1')")
	await(`"kind":"handoff"`)
	began := time.Now()
	p.signal(t, syscall.SIGTERM)
	for lines.Scan() {
	}
	if lines.Err() != nil {
		t.Error(lines.Err())
	}
	p.end(t).expect(t, 0, "drained")
	if took := time.Since(began); took > adminCloseTime {
		t.Errorf("the end took %v", took)
	}
}

// The script in docs/reference/api.md does what is said there.
func TestTheDocumentedScript(t *testing.T) {
	t.Parallel()
	stack.NeedsMore(t, "curl and jq")
	script, err := pages.First("../../docs/reference/api.md", "", "bash")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file, header := filepath.Join(dir, "work.sh"), filepath.Join(dir, "header")
	for name, text := range map[string]string{
		file: script, header: "Authorization: Bearer c2NyaXB0LXRva2VuLTE\n", filepath.Join(dir, "token"): "c2NyaXB0LXRva2VuLTE\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	url := database(t, true)
	stack.Exec(t, url, "CREATE TABLE orders (n serial, item text)")
	p := startProxy(t, url, "WIREFENCE_UNFENCED_WRITES=reject", "WIREFENCE_ADMIN_TOKEN_FILE="+filepath.Join(dir, "token"))
	run := func(settings []string, items ...string) (status int, output string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, file, items...)
		cmd.Env = append(os.Environ(), append(settings, "API=http://"+p.admin, "DATABASE_URL="+p.url, "API_HEADER="+header)...)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
	conn := stack.Connect(t, url)
	items := func() (all string) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), "SELECT coalesce(string_agg(item, ' ' ORDER BY n), '') FROM orders").Scan(&all); err != nil {
			t.Fatal(err)
		}
		return all
	}
	if status, out := run([]string{"TTL=2"}, "book", "pen"); status != 0 || out != "" || items() != "book pen" {
		t.Errorf("status %d, %q; there is %q", status, out, items())
	}
	var left int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM wirefence.leases").Scan(&left); err != nil || left != 0 {
		t.Errorf("%d leases are left, %v", left, err)
	}
	if _, metrics := get(t, "http://"+p.admin+"/metrics"); !regexp.MustCompile(`wirefence_api_requests_total\{operation="renew",status="200"\} 2\b`).MatchString(metrics) {
		t.Errorf("the script didn't renew:\n%s", metrics)
	}
	// It keeps its lease until its time behind the grant, beyond the TTL, and no longer.
	if status, out := run([]string{"TTL=2", "KEEP_FOR=4"}); status != 0 || out != "" {
		t.Errorf("status %d, %q", status, out)
	}
	if status, out := run([]string{"WAIT=0"}); status != 75 {
		t.Errorf("beside a kept lease: status %d, %q", status, out)
	}
	if status, out := run([]string{"WAIT=60"}); status != 0 {
		t.Errorf("behind a kept lease: status %d, %q", status, out)
	}
	// Its lease is taken away while it works: by the trigger, after the first item.
	stack.Exec(t, url, "CREATE FUNCTION take() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN DELETE FROM wirefence.leases; RETURN NULL; END'",
		"CREATE TRIGGER take AFTER INSERT ON orders EXECUTE FUNCTION take()")
	if status, out := run([]string{"TTL=2"}, "ink", "paper"); status != 76 || !strings.Contains(out, "lease-lost") || items() != "book pen ink" {
		t.Errorf("after the loss: status %d, %q; there is %q", status, out, items())
	}
	stack.Exec(t, url, "SELECT wirefence.acquire('orders', 'worker-b', '1 hour')")
	if status, out := run([]string{"WAIT=1"}, "glue"); status != 75 || !strings.Contains(out, "worker-b") || items() != "book pen ink" {
		t.Errorf("beside a holder: status %d, %q; there is %q", status, out, items())
	}
}
