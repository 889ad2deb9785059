package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The check neither listens nor connects: nothing is there, and the port is taken.
func TestCheckConfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	taken := startProxy(t, database(t, true))
	good := []string{
		"WIREFENCE_UPSTREAM=postgres://127.0.0.1:1/", "WIREFENCE_LISTEN=" + taken.admin, "WIREFENCE_ADMIN_LISTEN=" + taken.admin,
		"WIREFENCE_DATABASE_URL_FILE=" + file("url", "postgres://issuer:geheim@127.0.0.1:1/app?sslpassword=geheim\n"),
		"WIREFENCE_REDIS_URL=redis://u:geheim@127.0.0.1:1", "WIREFENCE_LEASE=orders", "WIREFENCE_DOCTOR_INTERVAL=15m",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1",
	}
	text := wirefence(t, good, "proxy", "--check-config", "--hold=20ms").expect(t, 0).
		says(t, "WIREFENCE_HOLD=20ms\n", "WIREFENCE_MODE=enforce\n", "WIREFENCE_DATABASE_URL=postgres://issuer@127.0.0.1:1/app\n", "WIREFENCE_REDIS_URL=redis://u@127.0.0.1:1\n")
	json := wirefence(t, good, "proxy", "--check-config", "-o", "json").expect(t, 0).says(t, `"WIREFENCE_HOLD": "50ms"`)
	documented(t, "wirefence proxy", 0, json.stdout)
	for _, r := range []result{text, json} {
		if strings.Contains(r.stdout+r.stderr, "geheim") {
			t.Errorf("a password is shown:\n%s%s", r.stdout, r.stderr)
		}
	}
	garbage := file("garbage", "garbage")
	for name, c := range map[string]struct {
		settings []string
		says     string
	}{
		"no upstream":          {[]string{"WIREFENCE_UPSTREAM="}, "WIREFENCE_UPSTREAM is not set"},
		"upstream":             {[]string{"WIREFENCE_UPSTREAM=postgres://h:port/"}, "port"},
		"upstream's authority": {[]string{"WIREFENCE_UPSTREAM=postgres://h/?sslmode=verify-full&sslrootcert=" + dir + "/none"}, dir + "/none"},
		"mode":                 {[]string{"WIREFENCE_MODE=loose"}, "enforce, shadow or off"},
		"unknown variable":     {[]string{"WIREFENCE_MOOD=shadow"}, "no setting"},
		"listen":               {[]string{"WIREFENCE_LISTEN=nowhere"}, "WIREFENCE_LISTEN: address nowhere: missing port"},
		"listen's port":        {[]string{"WIREFENCE_LISTEN=127.0.0.1:65536"}, "WIREFENCE_LISTEN"},
		"listen's folder":      {[]string{"WIREFENCE_LISTEN=unix:" + dir + "/none/.s.PGSQL.6433"}, dir + "/none"},
		"admin":                {[]string{"WIREFENCE_ADMIN_LISTEN=nowhere"}, "WIREFENCE_ADMIN_LISTEN"},
		"admin's tokens":       {[]string{"WIREFENCE_ADMIN_TOKEN_FILE=" + dir + "/none"}, "WIREFENCE_ADMIN_TOKEN_FILE"},
		"admin's certificate":  {[]string{"WIREFENCE_ADMIN_TLS_CERT_FILE=" + garbage, "WIREFENCE_ADMIN_TLS_KEY_FILE=" + garbage}, "WIREFENCE_ADMIN_TLS_CERT_FILE"},
		"certificate":          {[]string{"WIREFENCE_TLS_CERT_FILE=" + garbage, "WIREFENCE_TLS_KEY_FILE=" + garbage}, "TLS certificate"},
		"user file":            {[]string{"WIREFENCE_AUTH_FILE=" + dir + "/none"}, dir + "/none"},
		"database":             {[]string{"WIREFENCE_DATABASE_URL_FILE=", "WIREFENCE_DATABASE_URL=postgres://u:geheim@h:port/"}, "WIREFENCE_DATABASE_URL"},
		"file of the URL":      {[]string{"WIREFENCE_DATABASE_URL_FILE=" + dir + "/none"}, "WIREFENCE_DATABASE_URL_FILE: open"},
		"two stores":           {[]string{"WIREFENCE_ETCD_URL=etcd://h"}, "both WIREFENCE_REDIS_URL and WIREFENCE_ETCD_URL are set"},
		"store":                {[]string{"WIREFENCE_REDIS_URL=redis://u:geheim@h:port/"}, "WIREFENCE_REDIS_URL"},
		"lease":                {[]string{"WIREFENCE_LEASE=" + strings.Repeat("x", 256)}, "WIREFENCE_LEASE"},
		"limit":                {[]string{"WIREFENCE_MAX_CONNECTIONS=-1"}, "at least 1"},
		"log":                  {[]string{"WIREFENCE_LOG_LEVEL=loud"}, "loud"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := wirefence(t, append(append([]string{}, good...), c.settings...), "proxy", "--check-config").expect(t, exitUsage, c.says)
			if strings.Contains(r.stdout+r.stderr, "geheim") || r.stdout != "" {
				t.Errorf("it prints\n%s%s", r.stdout, r.stderr)
			}
		})
	}
}

// All errors are told at once, each on a line, and none that only follows from another.
func TestCheckConfigTellsAllErrors(t *testing.T) {
	t.Parallel()
	none := filepath.Join(t.TempDir(), "none")
	r := wirefence(t, []string{
		"WIREFENCE_UPSTREAM=postgres://u:geheim@h/", "WIREFENCE_DATABASE_URL=postgres://u:geh/eim@h/app", "WIREFENCE_AUTH_QUERY=SELECT $1",
		"WIREFENCE_TTL=soon", "WIREFENCE_MAX_CONNECTIONS=many", "WIREFENCE_MODE=loose", "WIREFENCE_MOOD=shadow", "WIREFENCE_LISTEN=nowhere,127.0.0.1:66666", "WIREFENCE_ADMIN_LISTEN=here",
		"WIREFENCE_AUTH_FILE=" + none, "WIREFENCE_TLS_CERT_FILE=" + none, "WIREFENCE_TLS_KEY_FILE=" + none, "WIREFENCE_ADMIN_TOKEN_FILE=" + none, "WIREFENCE_REDIS_URL_FILE=" + none,
		"WIREFENCE_DRAIN_TIMEOUT=-1s", "WIREFENCE_MAX_STATEMENT=1", "WIREFENCE_DOCTOR_INTERVAL=1ms", "WIREFENCE_LEASE=orders", "WIREFENCE_LOG_LEVEL=loud",
	}, "proxy", "--check-config").expect(t, exitUsage)
	lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
	for _, want := range []string{
		"WIREFENCE_UPSTREAM (--upstream): the upstream: it names a user", "WIREFENCE_DATABASE_URL (--database-url): its port",
		`WIREFENCE_TTL is "soon"`, `WIREFENCE_MAX_CONNECTIONS is "many"`, `WIREFENCE_MODE is "loose"`, "WIREFENCE_MOOD, which is no setting",
		"WIREFENCE_LISTEN: address nowhere", "WIREFENCE_LISTEN: address 66666", "WIREFENCE_ADMIN_LISTEN: address here",
		"user file", "TLS certificate", "WIREFENCE_ADMIN_TOKEN_FILE", "WIREFENCE_REDIS_URL_FILE: open", `WIREFENCE_DRAIN_TIMEOUT is "-1s": at least 1ms`, `WIREFENCE_MAX_STATEMENT is "1": at least 1024`,
		`WIREFENCE_DOCTOR_INTERVAL is "1ms": 0, or at least 1s`, `log level "loud"`, "See `wirefence proxy --help`.",
	} {
		at := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, want) })
		if at < 0 {
			t.Errorf("it doesn't say %q", want)
			continue
		}
		lines = slices.Delete(lines, at, at+1)
	}
	for _, line := range lines {
		t.Errorf("besides: %s", line)
	}
	for _, part := range []string{"geheim", "geh", "eim"} {
		if strings.Contains(r.stderr, part) {
			t.Errorf("a password is shown:\n%s", r.stderr)
		}
	}
	// Without the check the proxy tells as much.
	wirefence(t, []string{"WIREFENCE_UPSTREAM=h", "WIREFENCE_HOLD=-1s", "WIREFENCE_TTL=soon"}, "proxy").
		expect(t, exitUsage, "wirefence proxy: WIREFENCE_UPSTREAM (--upstream)", "\nwirefence proxy: WIREFENCE_HOLD is \"-1s\": 0 to 10s", `WIREFENCE_TTL is "soon"`)
}

// A setting whose file can't be read is not told to be missing, too.
func TestCheckConfigOfAnUnreadableFile(t *testing.T) {
	t.Parallel()
	none := filepath.Join(t.TempDir(), "none")
	r := wirefence(t, []string{"WIREFENCE_UPSTREAM_FILE=" + none, "WIREFENCE_DATABASE_URL_FILE=" + none, "WIREFENCE_LEASE=orders", "WIREFENCE_API_LISTEN=127.0.0.1:0"},
		"proxy", "--check-config").expect(t, exitUsage, "WIREFENCE_UPSTREAM_FILE: open", "WIREFENCE_DATABASE_URL_FILE: open")
	for line := range strings.Lines(r.stderr) {
		if strings.HasPrefix(line, "wirefence proxy:") && !strings.Contains(line, none) {
			t.Errorf("besides: %s", line)
		}
	}
}
