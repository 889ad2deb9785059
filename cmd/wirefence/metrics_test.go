package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/apiserver/apiservertest"
	"github.com/wirefence/wirefence/internal/stack"
)

// scrapeUnderLoad returns the metrics of a sidecar that leads, while clients write with
// current and stale tokens and without.
func scrapeUnderLoad(t *testing.T) string {
	t.Helper()
	url := database(t, true)
	stack.Exec(t, url, "CREATE TABLE jobs (worker text)", "SELECT wirefence.seal('invoices', 6), wirefence.seal('invoices', 7)")
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	hosts := fmt.Sprintf("postgres://%s:%d,localhost:%d/?sslmode=disable", cfg.Host, cfg.Port, cfg.Port)
	var leads atomic.Bool
	leads.Store(true)
	confirms := patroni(t, &leads)
	p := startProxy(t, url, "WIREFENCE_WITNESS=patroni://"+confirms+","+confirms, "WIREFENCE_LEASE=orders", "WIREFENCE_REDIS_URL="+redisServer(t).URL(),
		"WIREFENCE_LEASE_FROM=redis:job=job,kubernetes:shop/leader=leader", "WIREFENCE_KUBERNETES_URL="+apiservertest.Start(t).Setting(), "WIREFENCE_REDIS_LISTEN="+freeAddress(t), "WIREFENCE_UPSTREAM="+hosts, "WIREFENCE_DOCTOR_INTERVAL=1s")
	awaitRole(t, p, "leader")
	if status, body := get(t, "http://"+p.admin+"/v1/resources"); status != 200 {
		t.Errorf("GET /v1/resources answers %d: %s", status, body)
	}
	var clients sync.WaitGroup
	defer clients.Wait()
	ctx := t.Context()
	for i := range 4 {
		conn := stack.Connect(t, p.url)
		clients.Go(func() {
			for n := range 100 {
				sql := []string{"INSERT INTO jobs VALUES ('a')", "INSERT INTO jobs VALUES ($1) /*wirefence.token='invoices=7'*/", "SELECT $1::text /*wirefence.token='invoices=6'*/"}[(n+i)%3]
				args := []any{"a"}[:strings.Count(sql, "$1")]
				if _, err := conn.Exec(ctx, sql, args...); err != nil && !fence.IsStale(err) {
					t.Errorf("%s: %v", sql, err)
				}
			}
		})
	}
	scrape := ""
	stack.Eventually(t, "all was read once", func() bool {
		_, scrape = get(t, "http://"+p.admin+"/metrics")
		return strings.Contains(scrape, "\nwirefence_store_up 1") && strings.Contains(scrape, `wirefence_resource_held{resource="orders"} 1`) &&
			strings.Contains(scrape, `wirefence_resource_refusals_total{resource="invoices"`) && strings.Contains(scrape, "wirefence_upstream_timeline{") && strings.Contains(scrape, "wirefence_upstream_confirmed{") && strings.Contains(scrape, `wirefence_doctor_grade{grade="problem"} 1`)
	})
	return scrape
}

// metricRow is what docs/reference/metrics.md says of a metric.
type metricRow struct{ kind, labels, unit string }

// TestMetricsAreDocumented holds what a proxy under load tells against docs/reference/metrics.md,
// and against Prometheus' conventions.
func TestMetricsAreDocumented(t *testing.T) {
	stack.NeedsMore(t, "5 s of CPU")
	t.Parallel()
	scrape := scrapeUnderLoad(t)
	documented, told := documentedMetrics(t), toldMetrics(scrape)
	for _, name := range slices.Sorted(maps.Keys(told)) {
		if row, ok := documented[name]; !ok {
			t.Errorf("docs/reference/metrics.md lacks %s", name)
		} else if row != told[name] {
			t.Errorf("%s is %q, docs/reference/metrics.md says %q", name, told[name], row)
		}
	}
	for name := range documented {
		if _, ok := told[name]; !ok {
			t.Errorf("docs/reference/metrics.md has %s, which a proxy doesn't tell", name)
		}
	}
	for _, others := range []string{"go_goroutines", "process_open_fds", "promhttp_"} {
		if !strings.Contains(scrape, "\n"+others) {
			t.Errorf("there is no %s", others)
		}
	}
	t.Run("promtool", func(t *testing.T) {
		stack.NeedsMore(t, "promtool")
		lint := exec.CommandContext(t.Context(), "promtool", "check", "metrics")
		lint.Stdin = strings.NewReader(scrape)
		if out, err := lint.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("promtool check metrics: %v\n%s", err, out)
		}
	})
}

func documentedMetrics(t *testing.T) map[string]metricRow {
	t.Helper()
	text, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]metricRow{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) != 7 || !strings.Contains(cells[1], "`wirefence_") {
			continue
		}
		for i := range cells {
			cells[i] = strings.ReplaceAll(strings.Trim(cells[i], " "), "`", "")
		}
		labels := strings.Split(cells[3], ", ")
		slices.Sort(labels)
		if _, twice := rows[cells[1]]; twice {
			t.Errorf("docs/reference/metrics.md has %s twice", cells[1])
		}
		rows[cells[1]] = metricRow{cells[2], strings.Join(labels, ","), cells[4]}
	}
	return rows
}

var (
	typeLine   = regexp.MustCompile(`(?m)^# TYPE (wirefence_\w+) (\w+)$`)
	labelNames = regexp.MustCompile(`(\w+)="(?:[^"\\]|\\.)*"`)
)

// toldMetrics reads the text format.
func toldMetrics(scrape string) map[string]metricRow {
	told := map[string]metricRow{}
	for _, m := range typeLine.FindAllStringSubmatch(scrape, -1) {
		name, row := m[1], metricRow{kind: m[2]}
		for line := range strings.Lines(scrape) {
			series, _, _ := strings.Cut(line, " ")
			family, _, _ := strings.Cut(series, "{")
			if family != name && family != name+"_sum" {
				continue
			}
			var labels []string
			for _, l := range labelNames.FindAllStringSubmatch(line, -1) {
				labels = append(labels, l[1])
			}
			slices.Sort(labels)
			row.labels = strings.Join(labels, ",")
		}
		for _, unit := range []string{"seconds", "bytes"} {
			if strings.HasSuffix(strings.TrimSuffix(name, "_total"), "_"+unit) {
				row.unit = unit
			}
		}
		told[name] = row
	}
	return told
}

// Without a database there is nothing of its resources, but refusals are told by resource.
func TestMetricsWithoutADatabase(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 34, 'worker-B'), wirefence.seal('invoices', 7)")
	p := startProxy(t, url, "WIREFENCE_DATABASE_URL=", "WIREFENCE_METRICS_RESOURCES=1")
	conn := stack.Connect(t, p.url)
	for _, fence := range []string{"orders=33", "invoices=6", "orders=33"} {
		_, err := conn.Exec(t.Context(), "SELECT 1 /*wirefence.token='"+fence+"'*/")
		stack.WantState(t, err, "WF001", fence)
	}
	_, metrics := get(t, "http://"+p.admin+"/metrics")
	for _, c := range []struct {
		text string
		told bool
	}{
		{"wirefence_resource_token", false}, {"wirefence_resource_handoffs_total", false}, {"wirefence_database_up", false}, {"wirefence_store_up", false},
		{`wirefence_resource_refusals_total{resource="orders",shadow="false",sqlstate="WF001"} 2`, true},
		{`wirefence_resource_refusals_total{resource="other",shadow="false",sqlstate="WF001"} 1`, true},
	} {
		if told := strings.Contains(metrics, c.text); told != c.told {
			t.Errorf("%s is told: %v", c.text, told)
		}
	}
	wirefence(t, []string{"WIREFENCE_UPSTREAM=postgres://127.0.0.1:1/", "WIREFENCE_METRICS_RESOURCES=-1"}, "proxy").expect(t, exitUsage, "WIREFENCE_METRICS_RESOURCES")
}
