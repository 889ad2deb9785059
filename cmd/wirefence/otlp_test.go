package main

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	traces "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	span "go.opentelemetry.io/proto/otlp/trace/v1"
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
		p.stderr.Await(t, "cannot push telemetry")
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

// spans is a receiver of spans.
type spans struct {
	mu  sync.Mutex
	all []*span.Span
}

func (s *spans) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	request := &traces.ExportTraceServiceRequest{}
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(text, request) != nil {
		http.Error(w, "no", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, from := range request.ResourceSpans {
		for _, scope := range from.ScopeSpans {
			s.all = append(s.all, scope.Spans...)
		}
	}
}

func (s *spans) got() []*span.Span {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all
}

// A check that waits for a takeover has a span in the trace of its statement, if that is
// recorded.
func TestChecksThatWaitHaveSpans(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 33)")
	receiver := &spans{}
	server := httptest.NewServer(receiver)
	t.Cleanup(server.Close)
	p := startProxy(t, url, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="+server.URL+"/v1/traces", "OTEL_BSP_SCHEDULE_DELAY=100")
	const id = "0af7651916cd43dd8448eb211c80319c"
	traced := func(flags string) string {
		return "SELECT 1 /*wirefence.token='orders=33',traceparent='00-" + id + "-b7ad6b71692033" + flags + "-" + flags + "'*/"
	}
	conns := [3]*pgx.Conn{stack.Connect(t, p.url), stack.Connect(t, p.url), stack.Connect(t, p.url)}
	for _, c := range conns {
		if _, err := c.Exec(t.Context(), traced("00")); err != nil {
			t.Fatal(err)
		}
	}
	holder := conns[2]
	if _, err := holder.Exec(t.Context(), "BEGIN; SELECT 1 /*wirefence.token='orders=33'*/"); err != nil {
		t.Fatal(err)
	}
	sealed := make(chan error, 1)
	go func() {
		conn, err := pgx.Connect(t.Context(), url)
		if err == nil {
			_, err = conn.Exec(t.Context(), "SELECT wirefence.seal('orders', 34)")
			err = errors.Join(err, conn.Close(context.Background()))
		}
		sealed <- err
	}()
	watcher := stack.Connect(t, url)
	waiters := func(n int) {
		stack.Eventually(t, fmt.Sprintf("%d wait", n), func() bool {
			var waiting int
			err := watcher.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
				WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted`).Scan(&waiting)
			return err == nil && waiting == n
		})
	}
	waiters(1)
	refused := make(chan error, 2)
	for i, flags := range []string{"01", "00"} {
		go func() {
			var err error
			for err == nil { // one that comes where the seal looks at the holders again gets its lock
				_, err = conns[i].Exec(t.Context(), traced(flags))
			}
			refused <- err
		}()
	}
	waiters(3)
	if _, err := holder.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if err := <-sealed; err != nil {
		t.Fatal(err)
	}
	for range 2 {
		stack.WantState(t, <-refused, "WF001")
	}
	p.signal(t, syscall.SIGTERM)
	p.end(t).expect(t, 0, "drained")
	all := receiver.got()
	if len(all) == 0 {
		t.Fatal("there is no span")
	}
	got := all[len(all)-1]
	for _, got := range all {
		if got.Name != "wirefence check" || hex.EncodeToString(got.TraceId) != id || hex.EncodeToString(got.ParentSpanId) != "b7ad6b7169203301" {
			t.Errorf("a span is %v", got)
		}
	}
	if took := time.Duration(got.EndTimeUnixNano - got.StartTimeUnixNano); took < 10*time.Millisecond {
		t.Errorf("it took %v", took)
	}
}
