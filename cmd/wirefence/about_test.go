package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
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

func TestBuild(t *testing.T) {
	t.Parallel()
	recorded := []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.time", Value: "2026-11-20T10:00:00Z"}}
	for _, c := range []struct {
		name string
		info *debug.BuildInfo
		want [3]string
	}{
		{"nothing is known", nil, [3]string{"dev", "unknown", "unknown"}},
		{"a checkout", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: recorded}, [3]string{"dev", "0123456789abcdef", "2026-11-20T10:00:00Z"}},
		{"go install of a release", &debug.BuildInfo{Main: debug.Module{Version: "v0.1.0"}}, [3]string{"v0.1.0", "unknown", "unknown"}},
	} {
		if b := buildOf(c.info); [3]string{b.Version, b.Commit, b.CommitDate} != c.want || b.Schema == 0 || b.Go != runtime.Version() {
			t.Errorf("%s: %+v", c.name, b)
		}
	}
}

// The command version works with a misspelt setting in the environment.
func TestVersion(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"version"}, {"--version"}} {
		wirefence(t, []string{"WIREFENCE_MOOD=x"}, args...).expect(t, 0).says(t, "wirefence ", ", commit ", ", schema ", runtime.Version())
	}
	wirefence(t, nil, "version", "stray").expect(t, exitUsage, "no arguments")
}

func TestDurationsAndTimesInTheLog(t *testing.T) {
	at := time.Date(2026, 11, 20, 17, 0, 0, 0, time.UTC)
	for format, want := range map[string]string{
		"json": `"ttl":"1m30s","wait":{"after":"1.5ms"},"since":"2026-11-20T17:00:00Z"`,
		"text": `ttl=1m30s wait.after=1.5ms since=2026-11-20T17:00:00.000Z`,
	} {
		var out bytes.Buffer
		log := slog.New(logHandler(&out, slog.LevelInfo, format))
		log.With("ttl", 90*time.Second).Info("a line", slog.Group("wait", "after", 1500*time.Microsecond), "since", at)
		if !bytes.Contains(out.Bytes(), []byte(want)) {
			t.Errorf("%s: no %s in %s", format, want, out.Bytes())
		}
		if format != "json" {
			continue
		}
		var line struct{ Time string }
		if err := json.Unmarshal(out.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		if _, err := time.Parse(time.RFC3339Nano, line.Time); err != nil {
			t.Error(err)
		}
	}
}
