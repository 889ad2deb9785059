package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"testing"
	"time"
)

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
