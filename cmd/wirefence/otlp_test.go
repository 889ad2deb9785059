package main

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"syscall"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/protobuf/proto"

	"github.com/wirefence/wirefence/internal/stack"
)

// pushed is what a receiver of OTLP over HTTP has got.
type pushed struct {
	mu     sync.Mutex
	latest map[string]float64 // by metric, as gauges and counters have it
	names  map[string]string  // attributes of what pushes
	pushes int
	fail   bool
}

func (p *pushed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pushes++
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		body, _ = gzip.NewReader(r.Body)
	}
	text, err := io.ReadAll(body)
	request := &collector.ExportMetricsServiceRequest{}
	if p.fail || err != nil || r.URL.Path != "/v1/metrics" || proto.Unmarshal(text, request) != nil {
		http.Error(w, "no", http.StatusBadRequest)
		return
	}
	p.latest, p.names = map[string]float64{}, map[string]string{}
	for _, from := range request.ResourceMetrics {
		for _, a := range from.Resource.Attributes {
			p.names[a.Key] = a.Value.GetStringValue()
		}
		for _, scope := range from.ScopeMetrics {
			for _, m := range scope.Metrics {
				for _, point := range append(m.GetGauge().GetDataPoints(), m.GetSum().GetDataPoints()...) {
					p.latest[m.Name] += point.GetAsDouble()
				}
				for _, point := range m.GetHistogram().GetDataPoints() {
					p.latest[m.Name] += float64(point.Count)
				}
			}
		}
	}
}

func (p *pushed) figure(name string) float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.latest[name]
}

func TestMetricsArePushed(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 34)")
	receiver := &pushed{}
	server := httptest.NewServer(receiver)
	t.Cleanup(server.Close)
	for _, c := range []struct{ interval, service, want string }{{"100", "", "wirefence"}, {"3600000", "OTEL_SERVICE_NAME=billing", "billing"}} {
		p := startProxy(t, url, "OTEL_EXPORTER_OTLP_ENDPOINT="+server.URL, "OTEL_METRIC_EXPORT_INTERVAL="+c.interval, c.service)
		_, err := stack.Connect(t, p.url).Exec(t.Context(), "SELECT 1 /*wirefence.token='orders=33'*/")
		stack.WantState(t, err, "WF001")
		all := func() bool {
			return receiver.figure("wirefence_sessions") == 1 && receiver.figure("wirefence_refusals_total") == 1 && receiver.figure("wirefence_login_seconds") == 1
		}
		if c.service == "" {
			stack.Eventually(t, "the metrics have been pushed", all)
		}
		p.signal(t, syscall.SIGTERM)
		p.end(t).expect(t, 0, "drained")
		if n := receiver.figure("wirefence_logins_total"); n != 1 || receiver.names["service.name"] != c.want {
			t.Errorf("the last push of %s tells %v logins of %s", c.want, n, receiver.names["service.name"])
		}
		receiver.latest = nil
	}
}

// A receiver that is away, or refuses, is told of and keeps nothing from going on; none is
// asked where no variable names one.
func TestMetricsThatCannotBePushed(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	receiver := &pushed{fail: true}
	server := httptest.NewServer(receiver)
	t.Cleanup(server.Close)
	for _, endpoint := range []string{"http://127.0.0.1:1", server.URL} {
		p := startProxy(t, url, "OTEL_EXPORTER_OTLP_ENDPOINT="+endpoint, "OTEL_METRIC_EXPORT_INTERVAL=100", "OTEL_EXPORTER_OTLP_TIMEOUT=500")
		stack.Exec(t, p.url, "SELECT 1")
		p.stderr.Await(t, "cannot push metrics")
		p.signal(t, syscall.SIGTERM)
		p.end(t).expect(t, 0, "drained", "the last metrics were not pushed")
	}
	before := receiver.pushes
	p := startProxy(t, url, "OTEL_EXPORTER_OTLP_ENDPOINT="+server.URL, "OTEL_SDK_DISABLED=true", "OTEL_METRIC_EXPORT_INTERVAL=100")
	p.signal(t, syscall.SIGTERM)
	p.end(t).expect(t, 0, "drained")
	if receiver.pushes != before {
		t.Error("metrics are pushed although the SDK is disabled")
	}
	settings, _, _ := proxySettingsFor(t, url)
	wirefence(t, append(settings, "OTEL_EXPORTER_OTLP_ENDPOINT="+server.URL, "OTEL_EXPORTER_OTLP_PROTOCOL=carrier pigeon"), "proxy").expect(t, exitUsage, "metrics by OTLP: invalid OTLP protocol")
}
