package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/wirefence/wirefence/internal/quietlog"
)

// pushTime bounds the last push when the proxy ends.
const pushTime = time.Second

// pushes reports whether OpenTelemetry's own variables ask for a signal by OTLP: METRICS or
// TRACES.
func pushes(signal string) bool {
	return os.Getenv("OTEL_SDK_DISABLED") != "true" && os.Getenv("OTEL_"+signal+"_EXPORTER") != "none" &&
		cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT")) != ""
}

// telemetry pushes by OTLP what OpenTelemetry's variables ask for.
type telemetry struct {
	metrics *sdk.MeterProvider       // nil: not asked for
	traces  *sdktrace.TracerProvider // nil: not asked for
	log     *slog.Logger
}

// pushTelemetry pushes the gathered metrics periodically, and the spans of the telemetry's
// tracer.
func pushTelemetry(ctx context.Context, all prometheus.Gatherer, log *slog.Logger) (*telemetry, error) {
	t := &telemetry{log: log}
	if !pushes("METRICS") && !pushes("TRACES") {
		return t, nil
	}
	from, err := resource.Merge(resource.NewSchemaless(serviceName), resource.Environment())
	if err != nil {
		return nil, fmt.Errorf("telemetry by OTLP: %w", err)
	}
	failures := (&quietlog.Limiter{Every: time.Minute}).On(log)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { failures.Warn("cannot push telemetry, retrying", "error", err) }))
	if pushes("METRICS") {
		autoexport.WithFallbackMetricProducer(func(context.Context) (sdk.Producer, error) {
			return bridge.NewMetricProducer(bridge.WithGatherer(all)), nil
		})
		reader, err := autoexport.NewMetricReader(ctx)
		if err != nil {
			return nil, fmt.Errorf("metrics by OTLP: %w", err)
		}
		t.metrics = sdk.NewMeterProvider(sdk.WithReader(reader), sdk.WithResource(from))
	}
	if pushes("TRACES") {
		exporter, err := autoexport.NewSpanExporter(ctx)
		if err != nil {
			return nil, fmt.Errorf("traces by OTLP: %w", err)
		}
		t.traces = sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(from))
	}
	return t, nil
}

// tracer makes spans that are pushed, nil where traces aren't asked for.
func (t *telemetry) tracer() trace.Tracer {
	if t == nil || t.traces == nil {
		return nil
	}
	return t.traces.Tracer("github.com/wirefence/wirefence/proxy")
}

// end pushes once more, and ends.
func (t *telemetry) end() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), pushTime)
	defer cancel()
	if t.metrics != nil {
		if err := t.metrics.Shutdown(ctx); err != nil {
			t.log.Warn("the last metrics were not pushed", "error", err)
		}
	}
	if t.traces != nil {
		if err := t.traces.Shutdown(ctx); err != nil {
			t.log.Warn("the last spans were not pushed", "error", err)
		}
	}
}

var serviceName = attribute.String("service.name", "wirefence")
