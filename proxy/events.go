package proxy

import (
	"strconv"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/session"
)

// events implements session.Events by metrics and log lines.
type events conn

func (e *events) Checked() { e.server.metrics.checks.Inc() }

func (e *events) Waited(by session.Wait, d time.Duration, traceParent string) {
	e.server.metrics.waitSeconds[by].Observe(d.Seconds())
	e.addSpan(by, d, traceParent)
}

func (e *events) Ran(d time.Duration) { e.server.metrics.groupSeconds.Observe(d.Seconds()) }

func (e *events) Trouble(err error) {
	e.server.metrics.protocolErrors.Inc()
	e.log.Error("error in a session", "error", err)
}

// Ended logs at most one line a second for all sessions together, since a shutdown of the
// server ends them all.
func (e *events) Ended(end session.Ending) {
	args := []any{"sqlstate", end.State, "reason", truncate(end.Message, maxLoggedText), "pid", e.origin.PID}
	if len(end.Resources) > 0 {
		args = append(args, "resources", end.Resources)
	}
	e.server.logLimits.endedSessions.On(e.log).Warn("the server ended a session under a fence, maybe for a takeover or a revocation; see wirefence history", args...)
}

func (e *events) Refused(r session.Refusal) {
	if fence.IsProbe(r.State, r.Message, r.Detail) {
		e.server.probes.WithLabelValues(strconv.FormatBool(r.Shadow)).Inc()
		return
	}
	e.server.countRefusal(r, Refusal{State: r.State, Message: r.Message, Detail: r.Detail}.Verdict())
	if e.server.options.Refusals != nil && !r.Noted {
		e.server.options.Refusals.Refused(Refusal{
			Origin: e.origin, State: r.State, Message: r.Message, Detail: r.Detail, TraceParent: r.TraceParent, Shadow: r.Shadow, Raised: r.Raised,
		})
	}
	limiter := &e.refusals
	if r.State == fence.LeaseNotHeld {
		limiter = &e.server.logLimits.standbyRefusals
	}
	args := append([]any{"sqlstate", string(r.State)}, verdictAttrs(Refusal{State: r.State, Message: r.Message, Detail: r.Detail, TraceParent: r.TraceParent})...)
	text := "refused"
	if r.Shadow {
		text = "would have been refused"
	}
	limiter.On(e.log).Warn(text, args...)
}

// maxLoggedText bounds a refusal's text in a log line, in bytes. A client can raise an
// error with a text of any length.
const maxLoggedText = 1000

// verdictAttrs returns the attributes of a refusal's log line. DETAIL is among them only
// where the other attributes don't tell the same.
func verdictAttrs(r Refusal) []any {
	v := r.Verdict()
	r = r.Cut(maxLoggedText).WithoutKeys()
	args := []any{"reason", r.Message}
	if v.Resource != "" {
		args = append(args, "resource", string(v.Resource))
	}
	if v.Token != 0 || v.CurrentToken != 0 {
		args = append(args, "presented", v.Token.String(), "current", v.CurrentToken.String())
	}
	if v.Holder != "" {
		args = append(args, "holder", v.Holder, "since", formatSince(v.Since))
		if v.Free {
			args = append(args, "lease", "free")
		}
	}
	if v.Table != "" {
		args = append(args, "table", v.Table)
	}
	if v.CurrentToken == 0 && v.Table == "" && r.Detail != "" {
		args = append(args, "detail", r.Detail)
	}
	if traceID, spanID := r.Trace(); traceID != "" {
		args = append(args, "trace_id", traceID, "span_id", spanID)
	}
	return args
}

// formatSince converts a time of DETAIL to the log's format.
func formatSince(text string) string {
	at, err := time.Parse("2006-01-02 15:04:05.999999-07", text)
	if err != nil {
		return text
	}
	return at.UTC().Format(time.RFC3339Nano)
}
