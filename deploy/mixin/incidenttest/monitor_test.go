//go:build linux

package incidenttest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// patience is how long an alert may take to fire or to resolve.
const patience = time.Minute

// monitor is a Prometheus with the rules, and the Alertmanager that it tells.
type monitor struct {
	prometheus   *servers.Monitor
	alertmanager *servers.Monitor
	targets      string // the file that names what is scraped
	fired        map[string]bool
}

const config = `
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [%[1]s/recording.yaml, %[1]s/alerts.yaml]
alerting:
  alertmanagers:
    - static_configs: [{targets: [%[2]q]}]
scrape_configs:
  - job_name: app
    file_sd_configs: [{files: [%[1]s/targets.json], refresh_interval: 1s}]
`

func startMonitor(t *testing.T, proxies ...*wirefence) *monitor {
	t.Helper()
	dir := t.TempDir()
	hasten(t, dir)
	m := &monitor{targets: filepath.Join(dir, "targets.json"), fired: map[string]bool{}}
	m.scrape(t, proxies...)
	m.alertmanager = stack.Started(servers.StartAlertmanager(t.Context())).EndWith(t)
	m.prometheus = stack.Started(servers.StartPrometheus(t.Context(), fmt.Sprintf(config, dir, m.alertmanager.Addr()))).EndWith(t)
	return m
}

// hastened are times of the rules, and what stands in their place. Proxies read their
// database and record refusals every 10 s, so that no window may be shorter than that.
var hastened = []struct {
	times *regexp.Regexp
	by    string
}{
	{regexp.MustCompile(`for: [12]m`), "for: 3s"},
	{regexp.MustCompile(`for: 5m`), "for: 12s"},
	{regexp.MustCompile(`\[(5m|15m|1h)\]`), "[15s]"},
}

// hasten copies the rules, with seconds in the place of minutes.
func hasten(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{"recording.yaml", "alerts.yaml"} {
		text, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range hastened {
			text = h.times.ReplaceAll(text, []byte(h.by))
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// scrape names what is scraped from now on; proxies are told apart by their names.
func (m *monitor) scrape(t *testing.T, proxies ...*wirefence) {
	t.Helper()
	type group struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	var groups []group
	for _, p := range proxies {
		groups = append(groups, group{[]string{p.Admin}, map[string]string{"instance": p.name}})
	}
	text, err := json.Marshal(groups)
	if err == nil {
		err = os.WriteFile(m.targets+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(m.targets+".new", m.targets) // never seen half
	}
	if err != nil {
		t.Fatal(err)
	}
}

// ask reads JSON.
func ask(t *testing.T, url string, answer any) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s answers %s", url, resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(answer); err != nil {
		t.Fatal(err)
	}
}

// active are the alerts that Alertmanager has and that have not resolved, as their name
// and what they are about: `WirefenceProxyDown a`.
func (m *monitor) active(t *testing.T) []string {
	t.Helper()
	var alerts []struct {
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	}
	ask(t, m.alertmanager.URL()+"/api/v2/alerts", &alerts)
	all := []string{}
	for _, a := range alerts {
		name := a.Labels["alertname"]
		for _, label := range []string{"instance", "resource", "host"} {
			if about := a.Labels[label]; about != "" {
				name += " " + about
			}
		}
		if a.Labels["shadow"] == "true" {
			name += " in shadow"
		}
		for _, annotation := range a.Annotations {
			if annotation == "" || strings.Contains(annotation, "<error") || strings.Contains(annotation, "<no value>") {
				t.Errorf("%s says %q", name, a.Annotations)
			}
		}
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// fire waits until each of the alerts has fired; all need not do so at one time.
func (m *monitor) fire(t *testing.T, alerts ...string) {
	t.Helper()
	for _, alert := range alerts {
		name, _, _ := strings.Cut(alert, " ")
		m.fired[name] = true
	}
	left := slices.Clone(alerts)
	m.await(t, func(active []string) string {
		left = slices.DeleteFunc(left, func(name string) bool { return slices.Contains(active, name) })
		if len(left) > 0 {
			return fmt.Sprintf("did not fire: %q", left)
		}
		return ""
	})
}

// resolve waits until none of the alerts is active.
func (m *monitor) resolve(t *testing.T, alerts ...string) {
	t.Helper()
	m.await(t, func(active []string) string {
		left := slices.DeleteFunc(slices.Clone(alerts), func(name string) bool { return !slices.Contains(active, name) })
		if len(left) > 0 {
			return fmt.Sprintf("did not resolve: %q", left)
		}
		return ""
	})
}

// calm waits until no alert is active.
func (m *monitor) calm(t *testing.T) {
	t.Helper()
	m.await(t, func(active []string) string {
		if len(active) > 0 {
			return "no calm"
		}
		return ""
	})
}

func (m *monitor) await(t *testing.T, lacks func(active []string) string) {
	t.Helper()
	began := time.Now()
	for {
		active := m.active(t)
		lack := lacks(active)
		if lack == "" {
			t.Logf("after %.0f s active: %q", time.Since(began).Seconds(), active)
			return
		}
		if time.Since(began) > patience {
			t.Fatalf("%s; active: %q", lack, active)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// inspect looks at the rules: none has failed, and each alert has fired.
func (m *monitor) inspect(t *testing.T) {
	t.Helper()
	var answer struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Type, Health, LastError string }
			}
		}
	}
	ask(t, m.prometheus.URL()+"/api/v1/rules", &answer)
	alerts := 0
	for _, group := range answer.Data.Groups {
		for _, rule := range group.Rules {
			if rule.Health != "ok" {
				t.Errorf("%s is %s: %s", rule.Name, rule.Health, rule.LastError)
			}
			if rule.Type != "alerting" {
				continue
			}
			if alerts++; !m.fired[rule.Name] {
				t.Errorf("%s was not seen to fire", rule.Name)
			}
		}
	}
	if alerts == 0 {
		t.Error("Prometheus has no alerts")
	}
}

// query asks Prometheus, and returns how many series have a value that is a number.
func (m *monitor) query(t *testing.T, expr string) (series int) {
	t.Helper()
	var answer struct {
		Data struct {
			Result []struct {
				Value [2]any `json:"value"`
			} `json:"result"`
		} `json:"data"`
	}
	ask(t, m.prometheus.URL()+"/api/v1/query?query="+url.QueryEscape(expr), &answer)
	for _, one := range answer.Data.Result {
		if one.Value[1] != "NaN" {
			series++
		}
	}
	return series
}
