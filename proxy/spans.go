package proxy

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/wirefence/wirefence/proxy/internal/session"
)

// spanFrom is the shortest wait that gets a span. A check that waits for nothing takes a
// round trip to the server.
const spanFrom = 10 * time.Millisecond

// spanNames are by what was waited for.
var spanNames = [...]string{session.WaitCheck: "wirefence check", session.WaitExchange: "wirefence hold"}

// traced makes a span of a wait that has just ended, in the trace of the client's statement.
// traceParent is "" where that isn't recorded.
func (e *events) traced(by session.Wait, d time.Duration, traceParent string) {
	tracer := e.server.options.Tracer
	if tracer == nil || traceParent == "" || d < spanFrom {
		return
	}
	parent := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": traceParent})
	now := time.Now()
	_, span := tracer.Start(parent, spanNames[by], trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(now.Add(-d)), trace.WithAttributes(
		attribute.String("db.system.name", "postgresql"), attribute.String("db.namespace", e.origin.Database),
		attribute.String("client.address", e.origin.Address.String()), attribute.Int64("postgresql.pid", int64(e.origin.PID))))
	span.End(trace.WithTimestamp(now))
}
