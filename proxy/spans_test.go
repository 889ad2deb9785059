package proxy

import (
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/wirefence/wirefence/proxy/internal/session"
)

// Only waits that somebody would look for have spans, which are as long as the waits.
func TestShortWaitsHaveNoSpans(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	e := &events{server: &Server{options: Options{Tracer: sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder)).Tracer("")}}}
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	e.addSpan(session.WaitCheck, minSpan-1, parent)
	e.addSpan(session.WaitCheck, time.Second, "")
	e.addSpan(session.WaitExchange, minSpan, parent)
	ended := recorder.Ended()
	if len(ended) != 1 || ended[0].Name() != "wirefence hold" {
		t.Fatalf("there are %d spans", len(ended))
	}
	if took := ended[0].EndTime().Sub(ended[0].StartTime()); took != minSpan {
		t.Errorf("it took %v", took)
	}
	if got := ended[0].Parent().TraceID().String(); got != "0af7651916cd43dd8448eb211c80319c" || !ended[0].Parent().IsRemote() {
		t.Errorf("it is of the trace %s", got)
	}
}
