package deploy

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"

	"github.com/wirefence/wirefence/deploy/test/template"
)

const chartDir = "../helm/wirefence"

// chartValues are files of values that users would have.
var chartValues = []string{"sidecar.yaml", "standalone-tls.yaml", "postgres-only.yaml", "injection.yaml", "injection-all.yaml"}

func loadChart(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func valuesFile(t *testing.T, name string) chartutil.Values {
	t.Helper()
	values, err := chartutil.ReadValuesFile(filepath.Join("testdata/chart", name))
	if err != nil {
		t.Fatal(err)
	}
	return values
}

// render decodes strictly what a chart makes for Kubernetes.
func render(c *chart.Chart, values chartutil.Values, kubernetes string) (objects []any, err error) {
	files, err := template.Files(c, values, kubernetes)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, "NOTES.txt") {
			continue
		}
		some, err := decode(files[name])
		if err != nil {
			return nil, err
		}
		objects = append(objects, some...)
	}
	return objects, nil
}

func mustRender(t *testing.T, values, kubernetes string) []any {
	t.Helper()
	objects, err := render(loadChart(t), valuesFile(t, values), kubernetes)
	if err != nil {
		t.Fatalf("%s: %v", values, err)
	}
	return objects
}

func TestChartLints(t *testing.T) {
	t.Parallel()
	for _, name := range chartValues {
		for _, message := range lint.AllWithKubeVersion(chartDir, valuesFile(t, name), "shop", nil).Messages {
			// A chart without an icon is only an INFO.
			if message.Severity > support.InfoSev {
				t.Errorf("%s: %s", name, message)
			}
		}
	}
}

func TestChartVersion(t *testing.T) {
	t.Parallel()
	c := loadChart(t)
	tag, err := chartutil.Values(c.Values).PathValue("image.tag")
	if err != nil || tag != c.Metadata.AppVersion {
		t.Errorf("image.tag is %v (%v), and appVersion %s", tag, err, c.Metadata.AppVersion)
	}
}

// A chart of an application takes the sidecar in by its template.
func TestChartAsDependency(t *testing.T) {
	t.Parallel()
	parent := &chart.Chart{
		Metadata: &chart.Metadata{APIVersion: chart.APIVersionV2, Name: "reports", Version: "3.1.4", AppVersion: "7",
			Dependencies: []*chart.Dependency{{Name: "wirefence", Version: "0.1.0", Repository: "file://../wirefence"}}},
		Templates: []*chart.File{{Name: "templates/deployment.yaml", Data: []byte(read(t, "testdata/chart/parent.yaml"))}},
	}
	parent.AddDependency(loadChart(t))
	values := valuesFile(t, "sidecar.yaml")
	delete(values["sidecar"].(map[string]any), "example")
	objects, err := render(parent, chartutil.Values{"wirefence": values.AsMap()}, "v1.36.0")
	if err != nil {
		t.Fatal(err)
	}
	deployment := deployed(objects)
	pod := deployment.Spec.Template.Spec
	if len(pod.InitContainers) != 1 {
		t.Fatalf("the pod has %d init containers", len(pod.InitContainers))
	}
	sidecar := pod.InitContainers[0]
	sidecarContainerMisses(sidecar).report(t, "sidecar")
	containerMisses(sidecar).report(t, "sidecar")
	if lease := value(sidecar, "WIREFENCE_LEASE"); lease != "reports" {
		t.Errorf("it holds the lease of %q", lease)
	}
	mountMisses(pod, secretsOf(objects, "wirefence-issuer", "wirefence-redis")).report(t, "pod")
}

// A value that the chart doesn't know is refused, and so is a setting of no proxy.
func TestChartRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		spoil   map[string]any
		noticed string
	}{
		{map[string]any{"upsteam": map[string]any{"url": "postgres://db"}}, "upsteam"},
		{map[string]any{"tls": map[string]any{"enable": true}}, "enable"},
		{map[string]any{"tls": map[string]any{"mode": "verify-full"}}, "tls"},
		{map[string]any{"mode": "Sidecar"}, "mode"},
		{map[string]any{"enforcement": "enforced"}, "enforcement"},
		{map[string]any{"upstream": map[string]any{"url": "postgres:5432"}}, "upstream"},
		{map[string]any{"settings": map[string]any{"WIREFENCE_UNFENCED_WRITE": "reject"}}, "WIREFENCE_UNFENCED_WRITE"},
		{map[string]any{"settings": map[string]any{"WIREFENCE_LISTEN": "0.0.0.0:6432"}}, "WIREFENCE_LISTEN"},
		{map[string]any{"image": map[string]any{"digest": "0.1.0"}}, "digest"},
		{map[string]any{"replicaCount": "2"}, "replicaCount"},
		{map[string]any{"upstream": map[string]any{"url": ""}}, "upstream.url is not set"},
		{map[string]any{"issuer": map[string]any{"url": ""}}, "issuer.existingSecret is not set"},
		{map[string]any{"migration": map[string]any{"url": ""}}, "migration.existingSecret is not set"},
		{map[string]any{"adminTokens": map[string]any{"tokens": ""}}, "api.enabled needs tokens"},
		{map[string]any{"adminTLS": map[string]any{"enabled": true}}, "adminTLS.enabled needs a certificate"},
	} {
		t.Run(c.noticed, func(t *testing.T) {
			t.Parallel()
			values := chartutil.CoalesceTables(c.spoil, valuesFile(t, "postgres-only.yaml").AsMap())
			if _, err := render(loadChart(t), values, "v1.36.0"); err == nil {
				t.Error("it is accepted")
			} else if !strings.Contains(err.Error(), c.noticed) {
				t.Errorf("the error doesn't say %s: %v", c.noticed, err)
			}
		})
	}
}

// NOTES.txt says where to connect.
func TestChartNotes(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"standalone-tls.yaml": {"orders-wirefence.shop:6433", "https://orders-wirefence.shop:9434/v1", "deployment/orders-wirefence -- /wirefence status"},
		"postgres-only.yaml":  {"http://orders-wirefence.shop:9434/v1", "Shadow mode refuses nothing", "networkPolicy.database.enabled"},
		"injection.yaml":      {"wirefence.io/lease=NAME", "ConfigMap wirefence-sidecar", "the secret wirefence-issuer"},
		"sidecar.yaml":        {`{{- include "wirefence.sidecar" (dict "root" . "values" .Values.wirefence "lease" "reports")`, "127.0.0.1:6433"},
	} {
		files, err := template.Files(loadChart(t), valuesFile(t, name), "v1.36.0")
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range want {
			if notes := files["wirefence/templates/NOTES.txt"]; !strings.Contains(notes, part) {
				t.Errorf("%s: the notes don't say %s:\n%s", name, part, notes)
			}
		}
	}
}

// The rules and the dashboards are symbolic links to those of the mixin: an archive of the
// chart has the files themselves.
func TestAnArchiveOfTheChartHasRulesAndDashboards(t *testing.T) {
	t.Parallel()
	path, err := chartutil.Save(loadChart(t), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	packed, err := loader.LoadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, file := range packed.Files {
		got[file.Name] = string(file.Data)
	}
	names := []string{"alerts.yaml", "recording.yaml"}
	dashboards, err := filepath.Glob("../mixin/dashboards/*.json")
	if err != nil || len(dashboards) == 0 {
		t.Fatalf("dashboards: %v, %v", dashboards, err)
	}
	for _, path := range dashboards {
		names = append(names, "dashboards/"+filepath.Base(path))
	}
	for _, name := range names {
		want, err := os.ReadFile(filepath.Join("../mixin", name))
		if err != nil {
			t.Fatal(err)
		}
		if got["files/"+name] != string(want) {
			t.Errorf("files/%s has %d bytes in the archive, %d in the mixin", name, len(got["files/"+name]), len(want))
		}
	}
}
