package proxy

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/wirefence/wirefence/proxy/internal/session"
)

// minSpan is the shortest wait that gets a span. A check that waits for no lock takes only
// a round trip.
const minSpan = 10 * time.Millisecond

// spanNames are the names of spans, by the kind of wait.
var spanNames = [...]string{session.WaitCheck: "wirefence check", session.WaitExchange: "wirefence hold"}

// addSpan records a wait that has just ended as a span in the trace of the client's
// statement. traceParent is "" if that trace isn't recorded.
func (e *events) addSpan(by session.Wait, d time.Duration, traceParent string) {
	tracer := e.server.options.Tracer
	if tracer == nil || traceParent == "" || d < minSpan {
		return
	}
	parent := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": traceParent})
	now := time.Now()
	_, span := tracer.Start(parent, spanNames[by], trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(now.Add(-d)), trace.WithAttributes(
		attribute.String("db.system.name", "postgresql"), attribute.String("db.namespace", e.origin.Database),
		attribute.String("client.address", e.origin.Address.String()), attribute.Int64("postgresql.pid", int64(e.origin.PID))))
	span.End(trace.WithTimestamp(now))
}
