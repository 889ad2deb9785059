package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

func TestPasswordsAreLeftOut(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"": "", "host=db password=geheim": "(set)", "postgres://db/app": "postgres://db/app",
		"postgres://issuer:geheim@db.internal:5432,db2/app?sslmode=require&password=geheim": "postgres://issuer@db.internal:5432,db2/app?sslmode=require",
		"redis://:geheim@redis:6379/0":                    "redis://@redis:6379/0",
		"redis-sentinel://u:ge@heim@s1,s2/0?PASSWORD=x":   "redis-sentinel://u@s1,s2/0",
		"postgres://u:ge/heim@db/app":                     "(set)",
		"postgres://u:ge?heim@db/app":                     "(set)",
		"postgres:///app?host=/tmp&sslpassword=geheim":    "postgres:///app?host=%2Ftmp",
		"postgres://u@db/app?sentinel_secret=x&options=a": "postgres://u@db/app?options=a",
	} {
		if got := withoutPassword(given); got != want {
			t.Errorf("%s is told as %s, want %s", given, got, want)
		}
	}
}

func TestTheProxyTellsOfItself(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	p := startProxy(t, strings.Replace(url, "postgres@", "postgres:geheim-77@", 1), "WIREFENCE_UNFENCED_WRITES=reject", "WIREFENCE_REDIS_URL=redis://:geheim-78@127.0.0.1:1/0")
	status, about := ask(t, "GET", "http://"+p.admin+"/v1/about", "", "")
	settings, _ := about["settings"].(map[string]any)
	upstream, _ := about["upstream"].([]any)
	if status != 200 || about["mode"] != "enforce" || about["unfenced_writes"] != "reject" || about["version"] != thisBuild().Version || len(upstream) != 1 ||
		settings["WIREFENCE_MAX_CONNECTIONS"] != "1000" || settings["WIREFENCE_REDIS_URL"] != "redis://@127.0.0.1:1/0" || settings["WIREFENCE_LISTEN"] == "" {
		t.Errorf("%d: %v", status, about)
	}
	if strings.Contains(fmt.Sprint(about), "geheim") {
		t.Errorf("a password is told: %v", about)
	}
}

func TestAProxyKeepsSeries(t *testing.T) {
	t.Parallel()
	p := startProxy(t, database(t, true))
	conn := stack.Connect(t, p.url)
	if _, err := conn.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, "the session is in the series", func() bool {
		_, told := ask(t, "GET", "http://"+p.admin+"/v1/series?limit=1", "", "")
		all, _ := told["series"].([]any)
		for _, s := range all {
			if one := s.(map[string]any); one["name"] == "sessions" && fmt.Sprint(one["points"]) == "[1]" {
				return true
			}
		}
		return false
	})
}

func TestTheDoctorAnswersOverHTTP(t *testing.T) {
	t.Parallel()
	p := startProxy(t, database(t, true))
	status, examined := ask(t, "GET", "http://"+p.admin+"/v1/doctor", "", "")
	report, _ := examined["report"].(map[string]any)
	checks, _ := report["checks"].([]any)
	if status != 200 || report["grade"] == "" || len(checks) < 10 {
		t.Fatalf("%d: %v", status, examined)
	}
	seen := map[any]any{}
	for _, c := range checks {
		seen[c.(map[string]any)["check"]] = c.(map[string]any)["grade"]
	}
	for _, name := range []string{"proxy.ready", "proxy.fences", "schema.version"} {
		if seen[name] != "ok" {
			t.Errorf("%s is %v", name, seen[name])
		}
	}
}
