package main

import (
	"net"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/stack"
)

// proxied are the settings of a database behind a proxy that runs.
func (p patient) proxied(t *testing.T, proxy *proxyProcess, more ...string) []string {
	t.Helper()
	cfg, err := pgx.ParseConfig(proxy.url)
	if err != nil {
		t.Fatal(err)
	}
	return p.settings(append([]string{
		"WIREFENCE_UPSTREAM=postgres://" + p.Addr() + "/?sslmode=disable&pooling=session",
		"WIREFENCE_LISTEN=" + net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))),
		"WIREFENCE_ADMIN_LISTEN=" + proxy.admin,
	}, more...)...)
}

func TestDoctorOfAProxy(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	proxy := startProxy(t, p.URLFor("issuer", p.name))
	r := examine(t, p.proxied(t, proxy))
	for check, says := range map[string]string{
		"proxy.upstream": "the database of WIREFENCE_DATABASE_URL", "proxy.ready": "ready", "proxy.reachable": "answers in",
		"proxy.database": "the database of WIREFENCE_DATABASE_URL", "proxy.fences": "has fences checked, in both protocols",
	} {
		r.finds(t, check, "ok", says, "")
	}
	r.ends(t, 0)
	examine(t, p.settings("WIREFENCE_PROXY_URL="+strings.Replace(proxy.url, "postgres@", "app@", 1))).
		finds(t, "proxy.fences", "ok", "", "").ends(t, 0)
}

// The set-up of docs/install.md, with the limits that the server and the proxy have by default
// and a session that holds a resource, has nothing to warn of.
func TestDoctorOfTheDocumentedSetUp(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.exec(t, "CREATE ROLE wirefence LOGIN IN ROLE wirefence_issuer", "SELECT wirefence.seal('orders', 34)")
	proxy := startProxy(t, p.URLFor("wirefence", p.name))
	writer := stack.Connect(t, strings.Replace(proxy.url, "postgres@", "app@", 1))
	if _, err := writer.Exec(t.Context(), "BEGIN; SET LOCAL wirefence.token = 'orders=34'; SELECT 1"); err != nil {
		t.Fatal(err)
	}
	settings := append(p.proxied(t, proxy), "WIREFENCE_DATABASE_URL="+p.URLFor("wirefence", p.name), "WIREFENCE_MAX_CONNECTIONS=1000")
	examine(t, settings, "--strict").finds(t, "sessions.idle", "ok", "sessions that hold a resource: 1, and none is stuck", "").ends(t, 0)
	status, body := get(t, "http://"+proxy.admin+"/v1/doctor")
	if grade := regexp.MustCompile(`"report":\s*{\s*"grade":\s*"(ok|note)"`); status != 200 || !grade.MatchString(body) {
		t.Errorf("the console gets %d: %s", status, body)
	}
}

func TestDoctorOfAProxyThatDoesNotFence(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	shadow := startProxy(t, p.URLFor("issuer", p.name), "WIREFENCE_MODE=shadow")
	examine(t, p.proxied(t, shadow)).finds(t, "proxy.fences", "warning", "in shadow mode", "WIREFENCE_MODE=enforce").ends(t, 0, "proxy.fences")
	examine(t, p.proxied(t, shadow), "--strict").ends(t, exitProblem, "proxy.fences")
	off := startProxy(t, p.URLFor("issuer", p.name), "WIREFENCE_MODE=off")
	examine(t, p.proxied(t, off)).finds(t, "proxy.fences", "problem", "a malformed fence was not refused", "WIREFENCE_MODE=enforce").ends(t, exitProblem, "proxy.fences")
	// The database itself is no proxy.
	examine(t, p.settings("WIREFENCE_PROXY_URL="+p.URLFor("app", p.name))).
		finds(t, "proxy.fences", "problem", "a malformed fence was not refused", "let clients connect to the proxy").ends(t, exitProblem, "proxy.fences")
}

func TestDoctorOfAProxyOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	p, other := newPatient(t), database(t, true)
	proxy := startProxy(t, other)
	settings := append(p.proxied(t, proxy), "WIREFENCE_PROXY_URL="+proxy.url)
	examine(t, settings).finds(t, "proxy.database", "problem", "leads to another database", "name the same server").ends(t, exitProblem, "proxy.database")
	cfg, err := pgx.ParseConfig(other)
	if err != nil {
		t.Fatal(err)
	}
	stack.Exec(t, p.URL("postgres"), "CREATE DATABASE "+cfg.Database) // of the same name
	settings = []string{"WIREFENCE_DATABASE_URL=" + p.URL(cfg.Database), "WIREFENCE_UPSTREAM=postgres://" + postgres(t).Addr() + "/?sslmode=disable", "WIREFENCE_LISTEN=off", "WIREFENCE_ADMIN_LISTEN=off"}
	examine(t, settings).finds(t, "proxy.upstream", "problem", "leads to another database", "name the same server")
}

func TestDoctorWithoutItsProxy(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	r := examine(t, p.settings("WIREFENCE_UPSTREAM=postgres://127.0.0.1:1/", "WIREFENCE_LISTEN=127.0.0.1:1", "WIREFENCE_ADMIN_LISTEN=127.0.0.1:1"))
	r.finds(t, "proxy.upstream", "problem", "can't be reached", "WIREFENCE_UPSTREAM").finds(t, "proxy.ready", "problem", "don't answer", "WIREFENCE_ADMIN_LISTEN").
		finds(t, "proxy.reachable", "problem", "no session through the proxy", "WIREFENCE_LISTEN").finds(t, "proxy.fences", "unchecked", "because of proxy.reachable", "")
	r.ends(t, exitProblem, "proxy.upstream", "proxy.ready", "proxy.reachable", "proxy.database", "proxy.fences")
	// A proxy that runs, and whose server doesn't.
	settings, listen, admin := proxySettingsFor(t, "postgres://postgres@127.0.0.1:1/x?sslmode=disable")
	proxy := start(t, append(settings, "WIREFENCE_DATABASE_URL="), "proxy")
	proxy.stderr.Await(t, `"msg":"serving"`)
	examine(t, p.settings("WIREFENCE_LISTEN="+listen, "WIREFENCE_ADMIN_LISTEN="+admin)).
		finds(t, "proxy.ready", "problem", "the proxy is not ready", "log").ends(t, exitProblem, "proxy.ready", "proxy.reachable", "proxy.database", "proxy.fences")
}

// An alert on refusals must not be about the doctor, which may run each minute.
func TestDoctorLeavesNoTrace(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"enforce", "shadow"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t)
			proxy := startProxy(t, p.URLFor("issuer", p.name), "WIREFENCE_MODE="+mode)
			for range 2 {
				r := examine(t, p.proxied(t, proxy))
				r.finds(t, "proxy.fences", map[string]string{"enforce": "ok", "shadow": "warning"}[mode], "", "")
				if strings.Contains(r.text, "without a resource") {
					t.Errorf("the doctor tells of itself: %s", r.text)
				}
			}
			_, metrics := get(t, "http://"+proxy.admin+"/metrics")
			for line := range strings.Lines(metrics) {
				if (strings.HasPrefix(line, "wirefence_refusals_total{") || strings.HasPrefix(line, "wirefence_rejected_connections_total{")) && !strings.HasSuffix(line, " 0\n") {
					t.Errorf("counted: %s", line)
				}
			}
			if probes := `wirefence_doctor_probes_total{shadow="` + strconv.FormatBool(mode == "shadow") + `"} `; !strings.Contains(metrics, probes) || strings.Contains(metrics, probes+"0\n") {
				t.Errorf("no %s in\n%s", probes, metrics)
			}
			if log := proxy.stderr.String(); strings.Contains(log, "refused") || strings.Contains(log, "WARN") {
				t.Errorf("logged %s", log)
			}
			proxy.signal(t, syscall.SIGTERM)
			proxy.end(t).expect(t, 0) // what is to be recorded, is
			var rows, raised int
			if err := stack.Connect(t, p.URL(p.name)).QueryRow(t.Context(), "SELECT kept, raised FROM wirefence.history_totals()").Scan(&rows, &raised); err != nil || rows+raised > 0 {
				t.Errorf("%d rows of history, %d refusals counted, %v", rows, raised, err)
			}
		})
	}
}
