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
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
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
		exporter, err := byProtocol("METRICS",
			func() (sdk.Exporter, error) { return otlpmetrichttp.New(ctx) }, func() (sdk.Exporter, error) { return otlpmetricgrpc.New(ctx) })
		if err != nil {
			return nil, fmt.Errorf("metrics by OTLP: %w", err)
		}
		reader := sdk.NewPeriodicReader(exporter, sdk.WithProducer(bridge.NewMetricProducer(bridge.WithGatherer(all))))
		t.metrics = sdk.NewMeterProvider(sdk.WithReader(reader), sdk.WithResource(from))
	}
	if pushes("TRACES") {
		exporter, err := byProtocol("TRACES",
			func() (sdktrace.SpanExporter, error) { return otlptracehttp.New(ctx) }, func() (sdktrace.SpanExporter, error) { return otlptracegrpc.New(ctx) })
		if err != nil {
			return nil, fmt.Errorf("traces by OTLP: %w", err)
		}
		t.traces = sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(from))
	}
	return t, nil
}

// byProtocol makes a signal's exporter for the protocol that OpenTelemetry's variables name.
func byProtocol[E any](signal string, http, grpc func() (E, error)) (none E, err error) {
	if exporter := cmp.Or(os.Getenv("OTEL_"+signal+"_EXPORTER"), "otlp"); exporter != "otlp" {
		return none, fmt.Errorf("unknown exporter %q: otlp or none", exporter)
	}
	protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "http/protobuf")
	switch protocol {
	case "http/protobuf":
		return http()
	case "grpc":
		return grpc()
	}
	return none, fmt.Errorf("invalid OTLP protocol %q: http/protobuf or grpc", protocol)
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
