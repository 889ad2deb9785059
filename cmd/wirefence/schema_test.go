package main

import (
	"log/slog"
	"runtime"
	"strings"
	"testing"
)

// The caller that began to look for the schema can wait for its end.
func TestTheSchemaIsNotLookedForAfterTheEnd(t *testing.T) {
	t.Parallel()
	w := awaitedSchema(proxySettings{ServerSettings: ServerSettings{Mode: "enforce", DatabaseURL: "postgres://127.0.0.1:1/app"}}, slog.New(slog.DiscardHandler))
	end, err := w.begin(t.Context(), t.FailNow)
	if err != nil {
		t.Fatal(err)
	}
	if w.ready() == nil {
		t.Error("it is ready without a database")
	}
	end()
	all := make([]byte, 1<<20)
	if all = all[:runtime.Stack(all, true)]; strings.Contains(string(all), "(*awaited).wait") {
		t.Errorf("it looks on:\n%s", all)
	}
}
