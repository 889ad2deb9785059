package proxy

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/session"
)

// events turns what a session reports into metrics and log lines.
type events conn

func (e *events) Checked() { e.server.metrics.checks.Inc() }

func (e *events) Waited(by session.Wait, d time.Duration, traceParent string) {
	e.server.metrics.waitSeconds[by].Observe(d.Seconds())
	e.traced(by, d, traceParent)
}

func (e *events) Ran(d time.Duration) { e.server.metrics.groupSeconds.Observe(d.Seconds()) }

func (e *events) Trouble(err error) {
	e.server.metrics.trouble.Inc()
	e.log.Error("error in a session", "error", err)
}

// Ended logs one end a second of all sessions, since a shutdown of the server ends them
// all.
func (e *events) Ended(end session.Ending) {
	left, ok := e.server.endings.due(time.Now())
	if !ok {
		return
	}
	args := []any{"sqlstate", end.State, "reason", cut(end.Message, logged), "pid", e.origin.PID}
	if len(end.Resources) > 0 {
		args = append(args, "resources", end.Resources)
	}
	if left > 0 {
		args = append(args, "left_out", left)
	}
	e.log.Warn("a session under a fence was ended by the server, as a takeover or a revocation does; wirefence history tells whether it was one", args...)
}

// refusalLog keeps a zombie that tries again and again from filling the log: a
// session logs its first refusal and then one a second, with the number that
// were left out. Of those that come of standing by all sessions together log one.
type refusalLog struct {
	last time.Time
	left int
}

// standbyLog is a refusalLog for all sessions of a server.
type standbyLog struct {
	mu sync.Mutex
	refusalLog
}

// due reports whether a refusal is to be logged, and how many were left out.
func (l *refusalLog) due(now time.Time) (left int, ok bool) {
	if now.Sub(l.last) < time.Second {
		l.left++
		return 0, false
	}
	left = l.left
	l.last, l.left = now, 0
	return left, true
}

func (l *standbyLog) due(now time.Time) (left int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refusalLog.due(now)
}

func (e *events) Refused(r session.Refusal) {
	if fence.IsProbe(r.State, r.Message, r.Detail) {
		e.server.probes.WithLabelValues(strconv.FormatBool(r.Shadow)).Inc()
		return
	}
	e.server.refused(r, Refusal{State: r.State, Message: r.Message, Detail: r.Detail}.Verdict())
	if e.server.options.Refusals != nil && !r.Noted {
		e.server.options.Refusals.Refused(Refusal{
			Origin: e.origin, State: r.State, Message: r.Message, Detail: r.Detail, TraceParent: r.TraceParent, Shadow: r.Shadow, Raised: r.Raised,
		})
	}
	due := e.refusals.due
	if r.State == fence.LeaseNotHeld {
		due = e.server.standbyRefusals.due
	}
	left, ok := due(time.Now())
	if !ok {
		return
	}
	args := append([]any{"sqlstate", string(r.State)}, verdict(Refusal{State: r.State, Message: r.Message, Detail: r.Detail, TraceParent: r.TraceParent})...)
	if left > 0 {
		args = append(args, "left_out", left)
	}
	level, text := slog.LevelWarn, "refused"
	if r.Shadow {
		text = "would have been refused"
	}
	e.log.Log(context.Background(), level, text, args...)
}

// logged is how much of a refusal's text a line of the log has, in bytes. A client
// can raise an error of its own with a text of any length.
const logged = 1000

// verdict takes a refusal apart into attributes of a log line: its reason, and what
// it is about, or its DETAIL where that says something else.
func verdict(r Refusal) []any {
	v := r.Verdict()
	r = r.Cut(logged)
	args := []any{"reason", r.Message}
	if v.Resource != "" {
		args = append(args, "resource", string(v.Resource))
	}
	if v.Token != 0 || v.CurrentToken != 0 {
		args = append(args, "presented", v.Token.String(), "current", v.CurrentToken.String())
	}
	if v.Holder != "" {
		args = append(args, "holder", v.Holder, "since", since(v.Since))
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

// since writes a time of DETAIL as the other times of the log are written.
func since(text string) string {
	at, err := time.Parse("2006-01-02 15:04:05.999999-07", text)
	if err != nil {
		return text
	}
	return at.UTC().Format(time.RFC3339Nano)
}
