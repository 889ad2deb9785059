package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
)

// pushTime is what the last push has to end in when the proxy ends.
const pushTime = time.Second

// pushesMetrics reports whether OpenTelemetry's own variables ask for metrics by OTLP.
func pushesMetrics() bool {
	return os.Getenv("OTEL_SDK_DISABLED") != "true" &&
		(os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT") != "")
}

// pushMetrics pushes what is gathered again and again, as OpenTelemetry's variables say,
// where they ask for it. It returns what pushes once more and ends that.
func pushMetrics(ctx context.Context, all prometheus.Gatherer, log *slog.Logger) (end func(), err error) {
	if !pushesMetrics() {
		return func() {}, nil
	}
	autoexport.WithFallbackMetricProducer(func(context.Context) (sdk.Producer, error) {
		return bridge.NewMetricProducer(bridge.WithGatherer(all)), nil
	})
	reader, err := autoexport.NewMetricReader(ctx)
	if err != nil {
		return nil, fmt.Errorf("metrics by OTLP: %w", err)
	}
	from, err := resource.Merge(resource.NewSchemaless(serviceName), resource.Environment())
	if err != nil {
		return nil, fmt.Errorf("metrics by OTLP: %w", err)
	}
	otel.SetErrorHandler(&pushLog{log: log})
	provider := sdk.NewMeterProvider(sdk.WithReader(reader), sdk.WithResource(from))
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), pushTime)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			log.Warn("the last metrics were not pushed", "error", err)
		}
	}, nil
}

// pushLog logs an error of a push, and the next in a minute at the earliest.
type pushLog struct {
	log *slog.Logger

	mu   sync.Mutex
	last time.Time
}

// Handle implements otel.ErrorHandler.
func (l *pushLog) Handle(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.last) >= repeatPushErrors {
		l.last = time.Now()
		l.log.Warn("cannot push metrics, retrying", "error", err)
	}
}

const repeatPushErrors = time.Minute

var serviceName = attribute.String("service.name", "wirefence")
