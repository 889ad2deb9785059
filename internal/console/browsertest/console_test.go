package browsertest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/wirefence/wirefence/internal/apiserver/apiservertest"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// hostile is a resource's name that would be markup, and reads backwards.
const hostile = `<img src=x onerror=alert(1)>"'/` + "\u202e" + `sredro`

func TestPages(t *testing.T) {
	kube := apiservertest.Start(t)
	w := start(t, "WIREFENCE_LEASE_FROM=kubernetes:shop/reports=reports", "WIREFENCE_LEASE_OWNER=web-1", "WIREFENCE_KUBERNETES_URL="+kube.Setting())
	stack.Eventually(t, "the election is followed", func() bool { return w.proxy.Answers(t.Context(), "/readyz") })
	kube.Candidate("reports", "web-1_0d9f3c52-6a0e-4c5a-9a8f-3f0a2b6c7d11").Lead(t)
	w.acquire(t, "orders", "worker-a", time.Hour)
	w.acquire(t, "report/acme/17", "worker-b", time.Hour)
	w.acquire(t, hostile, hostile, time.Hour)
	stack.Exec(t, w.pg.URL("postgres"), "SELECT wirefence.revoke('report/acme/17')",
		"CREATE TABLE jobs (id int PRIMARY KEY, claim bigint)", "SELECT wirefence.declare_rows('job', 'jobs', '{id}', 'claim', 'claim > 0')")
	v := w.visit(t, operator)
	stack.Eventually(t, "charts are drawn", func() bool { return ask[int](v, "document.querySelectorAll('.chart canvas').length") >= 3 })
	for _, theme := range []string{"light", "dark"} {
		for _, s := range sizes {
			for _, page := range []struct{ path, shows string }{
				{"/", "worker-a"}, {"/resources", "orders"}, {"/resources/orders", "worker-a"}, {"/history", "worker-b"},
				{"/guards", "(claim > 0)"}, {"/doctor", "The worst of"}, {"/about", "Locks of the application"},
			} {
				v.look(s, theme)
				v.open(page.path)
				v.shows(page.shows)
				if over := ask[int](v, "document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth"); over > 0 {
					t.Errorf("%s, %s: the page is %d px too wide", page.path, s.name, over)
				}
				v.accessible(page.path + ", " + s.name + ", " + theme)
				v.keep(strings.ReplaceAll(strings.Trim(page.path, "/")+"-"+s.name+"-"+theme, "/", "-"))
			}
		}
	}
	v.contented()
}

func TestNamesStayText(t *testing.T) {
	w := start(t)
	w.acquire(t, hostile, hostile, time.Hour)
	v := w.visit(t, operator)
	for _, path := range []string{"/", "/resources", "/history"} {
		v.open(path)
		v.shows(`<img src=x onerror=alert(1)>"'/\u202esredro`)
	}
	v.open("/resources")
	v.do("click the resource", chromedp.Click("tbody a"))
	v.shows("Policy", `<img src=x onerror=alert(1)>"'/\u202esredro`)
	if n := ask[int](v, "document.querySelectorAll('main img').length"); n != 0 {
		t.Errorf("%d names became images", n)
	}
	v.contented()
}

// A takeover is seen without a reload, and a revocation is made from the page, and recorded
// with its reason and the token's name.
func TestTakeoverAndRevocation(t *testing.T) {
	w := start(t)
	w.acquire(t, "orders", "worker-a", time.Second)
	v := w.visit(t, operator)
	ask[any](v, "window.same = true; null")
	v.open("/resources/orders")
	v.shows("worker-a")
	stack.Eventually(t, "the lease has expired", func() bool {
		var token *int64
		err := w.db.QueryRow(t.Context(), "SELECT token FROM wirefence.acquire('orders', 'worker-b', '1 hour')").Scan(&token)
		return err == nil && token != nil
	})
	v.shows("worker-b took over from worker-a with token 2")
	v.click("Revoke …")
	v.shows("is locked out at once")
	v.keep("revoke")
	ask[any](v, `(() => { const r = document.getElementById('ask-reason'); r.value = 'it hangs'; r.dispatchEvent(new Event('input', { bubbles: true })); })()`)
	v.click("Revoke")
	v.shows("locked out worker-b", "“it hangs”", "olga")
	var by, reason string
	if err := w.db.QueryRow(t.Context(), "SELECT application, reason FROM wirefence.history('orders') WHERE kind = 'revocation'").Scan(&by, &reason); err != nil {
		t.Fatal(err)
	}
	if by != "wirefence-api/olga" || reason != "it hangs" {
		t.Errorf("recorded: %q by %q", reason, by)
	}
	v.click("Shadow …")
	ask[any](v, `(() => { const r = document.getElementById('ask-reason'); r.value = 'let it be seen'; r.dispatchEvent(new Event('input', { bubbles: true })); })()`)
	v.click("Shadow")
	v.shows("let it be seen", "Enforce …")
	if !ask[bool](v, "window.same === true") {
		t.Error("the page was loaded anew")
	}
	v.contented()
}

// A token that may only look is shown nothing that it may not do, and the server refuses.
func TestAViewer(t *testing.T) {
	w := start(t)
	w.acquire(t, "orders", "worker-a", time.Hour)
	v := w.visit(t, viewer)
	v.open("/resources/orders")
	v.shows("worker-a", "vic")
	if text := v.text(); strings.Contains(text, "Revoke") || strings.Contains(text, "Shadow") {
		t.Errorf("a viewer is offered more than to look:\n%s", text)
	}
	v.contented()
	status := ask[int](v, fmt.Sprintf(`(async () => (await fetch('/v1/resources/orders/revoke', {method: 'POST', body: '{"reason":"x"}', headers: {'Content-Type': 'application/json', Authorization: 'Bearer %s'}})).status)()`, viewer))
	if status != 403 {
		t.Errorf("a viewer's revocation gets %d", status)
	}
	v.click("Leave")
	v.shows("Token")
	v.contented("403", "401")
}

// While the proxy is away the page says so, and goes on by itself when it is back.
func TestAProxyThatComesBack(t *testing.T) {
	w := start(t)
	w.acquire(t, "orders", "worker-a", time.Hour)
	v := w.visit(t, operator)
	v.open("/resources")
	v.shows("worker-a")
	v.stands("live")
	w.stop(t)
	v.shows("does not answer")
	v.stands("not connected")
	w.serve(t)
	w.acquire(t, "invoices", "worker-c", time.Hour)
	v.shows("worker-c")
	stack.Eventually(t, "all is well again", func() bool {
		text := v.text()
		return !strings.Contains(text, "does not answer") && !strings.Contains(text, "not connected")
	})
}

// Without its database the page says so, with what it had before, and goes on by itself.
func TestADatabaseThatComesBack(t *testing.T) {
	w := start(t)
	w.acquire(t, "orders", "worker-a", time.Hour)
	v := w.visit(t, operator)
	v.open("/resources")
	v.shows("worker-a")
	v.stands("live")
	_ = w.db.Close(t.Context())
	w.pg.Stop()
	v.stands("no database")
	v.shows("worker-a")
	if err := w.pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.db = stack.Connect(t, w.pg.URL("postgres"))
	w.acquire(t, "invoices", "worker-c", time.Hour)
	v.shows("worker-c")
	v.stands("live")
}

// While the lease store hangs, the page says so within seconds, and calls no lease free.
func TestAStoreThatHangs(t *testing.T) {
	redis := stack.Started(servers.StartRedis(t.Context())).EndWith(t)
	link := stack.Started(servers.StartLink(redis.Addr())).EndWith(t)
	w := start(t, "WIREFENCE_REDIS_URL=redis://"+link.Addr()+"/0")
	if _, err := w.db.Exec(t.Context(), "SELECT wirefence.seal('orders', 7, 'worker-a', 'redis')"); err != nil {
		t.Fatal(err)
	}
	v := w.visit(t, operator)
	v.open("/resources")
	v.shows("free")
	v.stands("live")
	link.Hold()
	began := time.Now()
	v.shows("The lease store does not answer: no answer within 2s", "unknown")
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("that took %v", took)
	}
	v.open("/")
	v.shows("unknown")
	v.keep("store-hangs")
	link.Restore()
	stack.Eventually(t, "all is well again", func() bool {
		text := v.text()
		return !strings.Contains(text, "does not answer") && strings.Contains(text, "free")
	})
	v.contented()
}

// Ten thousand resources and a hundred thousand rows of history are filtered and shown.
func TestMany(t *testing.T) {
	w := start(t)
	stack.Exec(t, w.pg.URL("postgres"),
		"INSERT INTO wirefence.resource_locks (resource_id, last_token) SELECT 'job/' || lpad(n::text, 5, '0'), 1 FROM generate_series(1, 10000) AS n",
		`INSERT INTO wirefence.history (kind, resource, token, holder, login, at) SELECT 'refusal', 'job/00001', 1, 'w', 'app', clock_timestamp() - make_interval(secs => n) FROM generate_series(1, 100000) AS n`)
	v := w.visit(t, viewer)
	v.open("/resources")
	v.shows("10,000 of 10,000")
	ask[any](v, `(() => { const f = document.querySelector('input[type=search]'); f.value = 'job/09999'; f.dispatchEvent(new Event('input', { bubbles: true })); })()`)
	v.shows("1 of 10,000", "job/09999")
	v.open("/history")
	v.shows("Show 200 more")
	v.click("Show 200 more")
	stack.Eventually(t, "400 rows are shown", func() bool { return ask[int](v, "document.querySelectorAll('tbody tr').length") == 400 })
	v.contented()
}

// All can be reached with the keyboard alone.
func TestKeyboard(t *testing.T) {
	w := start(t)
	v := w.visit(t, operator)
	v.tab()
	if got := ask[string](v, "document.activeElement.className"); got != "skip" {
		t.Errorf("the first that has the focus is %q", got)
	}
	var reached []string
	for range 12 {
		v.tab()
		reached = append(reached, ask[string](v, "document.activeElement.textContent.trim()"))
	}
	for _, want := range []string{"Resources", "History", "Doctor"} {
		if !strings.Contains(strings.Join(reached, "\n"), want) {
			t.Errorf("%s isn't reached by the tab key: %q", want, reached)
		}
	}
	v.contented()
}
