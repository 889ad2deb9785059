package sqltext

import (
	"strings"
	"testing"
)

func TestTraceParent(t *testing.T) {
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for text, want := range map[string]string{
		"SELECT 1": "",
		"SELECT 1 /*traceparent='" + trace + "'*/":                                           trace,
		"/*action='x',traceparent='" + trace + "',wirefence.token='orders%3D34'*/ SELECT 1":  trace,
		"SELECT 1 -- traceparent='" + trace + "'":                                            trace,
		"SELECT 1 /*traceparent='" + trace + "":                                              "",
		"SELECT 1 /*traceparent='" + strings.ToUpper(trace) + "'*/":                          "",
		"SELECT 1 /*traceparent='ff" + trace[2:] + "'*/":                                     "",
		"SELECT 1 /*traceparent='00-00000000000000000000000000000000-00f067aa0ba902b7-01'*/": "",
		"SELECT 1 /*traceparent='00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01'*/": "",
		"SELECT 1 /*traceparent='bad', traceparent='" + trace + "'*/":                        trace,
		"SELECT 1 /* x */, traceparent='" + trace + "'":                                      "",
		"SELECT 'x' traceparent='" + trace + "'":                                             "",
	} {
		if got := string(TraceParent([]byte(text))); got != want {
			t.Errorf("%s: %q", text, got)
		}
	}
}
