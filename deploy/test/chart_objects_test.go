package deploy

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chartutil"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

func TestChartStandalone(t *testing.T) {
	t.Parallel()
	for name, secrets := range map[string][]string{
		"standalone-tls.yaml": {"wirefence-issuer", "wirefence-owner", "wirefence-tokens", "postgres-ca", "client-ca", "wirefence-users"},
		"postgres-only.yaml":  nil,
	} {
		objects := mustRender(t, name, "v1.36.0")
		standaloneMisses(objects).report(t, name)
		chartMigrateMisses(objects).report(t, name)
		given := secretsOf(objects, secrets...)
		for _, pod := range []corev1.PodSpec{deployed(objects).Spec.Template.Spec, one[batchv1.Job](objects).Spec.Template.Spec} {
			mountMisses(pod, given).report(t, name)
		}
	}
}

// What the values ask for is what the proxy is given.
func TestChartTLS(t *testing.T) {
	t.Parallel()
	objects := mustRender(t, "standalone-tls.yaml", "v1.36.0")
	proxy := deployed(objects).Spec.Template.Spec.Containers[0]
	env := environment(proxy)
	for name, want := range map[string]string{
		"WIREFENCE_UPSTREAM":        "postgres://db-1.example.com:5432,db-2.example.com:5432/?sslmode=verify-full&target_session_attrs=read-write&sslrootcert=/etc/wirefence/upstream/ca.crt",
		"WIREFENCE_TLS_MODE":        "require",
		"WIREFENCE_TLS_CLIENT_CERT": "optional",
		"WIREFENCE_UNFENCED_WRITES": "reject",
		"WIREFENCE_MAX_CONNECTIONS": "2000",
		"WIREFENCE_TTL":             "20s",
		"WIREFENCE_API_LISTEN":      "0.0.0.0:9434",
		"GOMEMLIMIT":                "921MiB",
	} {
		if env[name] != want {
			t.Errorf("%s is %q, want %q", name, env[name], want)
		}
	}
	for _, probe := range []*corev1.Probe{proxy.StartupProbe, proxy.ReadinessProbe, proxy.LivenessProbe} {
		if probe.HTTPGet.Scheme != corev1.URISchemeHTTPS {
			t.Errorf("a probe asks by %s", probe.HTTPGet.Scheme)
		}
	}
	certificate := one[certmanagerv1.Certificate](objects)
	for _, name := range []string{"orders-wirefence", "orders-wirefence.shop.svc", "orders.example.com"} {
		if !slices.Contains(certificate.Spec.DNSNames, name) {
			t.Errorf("the certificate is not for %s", name)
		}
	}
	if certificate.Spec.IssuerRef.Name != "internal" || certificate.Spec.SecretName != "orders-wirefence-tls" {
		t.Errorf("the certificate is %+v", certificate.Spec)
	}
}

func TestChartSidecar(t *testing.T) {
	t.Parallel()
	objects := mustRender(t, "sidecar.yaml", "v1.29.0")
	deployment := deployed(objects)
	pod := deployment.Spec.Template.Spec
	for _, m := range []misses{podMisses(pod), mountMisses(pod, secretsOf(objects, "wirefence-issuer", "wirefence-redis")),
		sidecarContainerMisses(pod.InitContainers[0]), chartMigrateMisses(objects)} {
		m.report(t, "sidecar.yaml")
	}
	env := environment(pod.InitContainers[0])
	if env["WIREFENCE_LEASE"] != "reports" || env["WIREFENCE_STANDBY"] != "refuse" {
		t.Errorf("the lease is %q, the standby %q", env["WIREFENCE_LEASE"], env["WIREFENCE_STANDBY"])
	}
	app := pod.Containers[0]
	if address := value(app, "PGHOST") + ":" + value(app, "PGPORT"); address != env["WIREFENCE_LISTEN"] {
		t.Errorf("the application connects to %s", address)
	}
	if service := one[corev1.Service](objects); service.Name != "" {
		t.Error("there is a service, and no stand-alone proxy")
	}
	if !selects(&one[monitoringv1.PodMonitor](objects).Spec.Selector, labels.Set(deployment.Spec.Template.Labels)) {
		t.Error("the sidecar isn't monitored")
	}
}

// Before Kubernetes 1.30 there is no preStop sleep, and the proxy itself waits.
func TestChartDrains(t *testing.T) {
	t.Parallel()
	for version, sleeps := range map[string]bool{"v1.29.4": false, "v1.30.0": true, "v1.36.1-gke.100": true} {
		proxy := deployed(mustRender(t, "postgres-only.yaml", version)).Spec.Template.Spec.Containers[0]
		hook := proxy.Lifecycle != nil && proxy.Lifecycle.PreStop.Sleep.Seconds == 5
		if grace := value(proxy, "WIREFENCE_DRAIN_GRACE"); hook != sleeps || (grace == "5s") == sleeps {
			t.Errorf("%s: a preStop sleep: %v, WIREFENCE_DRAIN_GRACE: %q", version, hook, grace)
		}
	}
	for version, fits := range map[string]bool{"v1.28.15": false, "v1.29.0": true, "v1.29.4-eks-036c24b": true} {
		if chartutil.IsCompatibleRange(loadChart(t).Metadata.KubeVersion, version) != fits {
			t.Errorf("Kubernetes %s is accepted: %v", version, !fits)
		}
	}
}

// The rules and the dashboards are those of deploy/mixin.
func TestChartMonitoring(t *testing.T) {
	t.Parallel()
	objects := mustRender(t, "standalone-tls.yaml", "v1.36.0")
	var want monitoringv1.PrometheusRuleSpec
	for _, file := range []string{"recording.yaml", "alerts.yaml"} {
		var rules monitoringv1.PrometheusRuleSpec
		if err := yaml.UnmarshalStrict([]byte(read(t, "../mixin/"+file)), &rules); err != nil {
			t.Fatal(err)
		}
		want.Groups = append(want.Groups, rules.Groups...)
	}
	got := one[monitoringv1.PrometheusRule](objects)
	if a, b := asYAML(t, got.Spec), asYAML(t, want); len(want.Groups) == 0 || a != b {
		t.Errorf("the rules differ from deploy/mixin:\n%s", a)
	}
	dashboards := map[string]string{}
	for _, object := range objects {
		if config, ok := object.(*corev1.ConfigMap); ok {
			maps.Copy(dashboards, config.Data)
			if config.Labels["grafana_dashboard"] != "1" {
				t.Errorf("%s is not found by Grafana", config.Name)
			}
		}
	}
	for _, name := range []string{"fleet.json", "resource.json"} {
		if strings.TrimSpace(dashboards["wirefence-"+name]) != strings.TrimSpace(read(t, "../mixin/dashboards/"+name)) {
			t.Errorf("%s is another than that of deploy/mixin", name)
		}
	}
	monitor := one[monitoringv1.PodMonitor](objects)
	proxy := deployed(objects).Spec.Template
	if !selects(&monitor.Spec.Selector, labels.Set(proxy.Labels)) {
		t.Error("the monitor selects other pods")
	}
	endpoint := monitor.Spec.PodMetricsEndpoints[0]
	if endpoint.Port == nil || *endpoint.Port != "admin" || endpoint.Scheme == nil || !strings.EqualFold(string(*endpoint.Scheme), "https") {
		t.Errorf("the monitor asks %+v", endpoint)
	}
	if proxy.Annotations["prometheus.io/port"] != "9433" || proxy.Annotations["prometheus.io/scheme"] != "https" {
		t.Errorf("the annotations are %v", proxy.Annotations)
	}
}

// Clients get to the session port and to the API, and to the admin port monitoring alone.
func TestChartNetworkPolicy(t *testing.T) {
	t.Parallel()
	objects := mustRender(t, "standalone-tls.yaml", "v1.36.0")
	policies := map[string]*networkingv1.NetworkPolicy{}
	for _, object := range objects {
		if policy, ok := object.(*networkingv1.NetworkPolicy); ok {
			policies[policy.Name] = policy
		}
	}
	proxy, database := policies["orders-wirefence"], policies["orders-wirefence-database"]
	if proxy == nil || database == nil {
		t.Fatalf("policies are %v", slices.Collect(maps.Keys(policies)))
	}
	clientPolicyMisses(proxy).report(t, proxy.Name)
	for _, template := range []map[string]string{deployed(objects).Spec.Template.Labels, one[batchv1.Job](objects).Spec.Template.Labels} {
		if !selects(database.Spec.Ingress[0].From[0].PodSelector, labels.Set(template)) {
			t.Errorf("the database doesn't admit pods with %v", template)
		}
	}
	if port := database.Spec.Ingress[0].Ports[0].Port.IntValue(); port != 5432 {
		t.Errorf("the database is reached at %d", port)
	}
}

// One replica has no budget: it would keep its node from being drained.
func TestChartOneReplica(t *testing.T) {
	t.Parallel()
	values := valuesFile(t, "postgres-only.yaml")
	values["replicaCount"] = 1
	objects, err := render(loadChart(t), values, "v1.36.0")
	if err != nil {
		t.Fatal(err)
	}
	if one[policyv1.PodDisruptionBudget](objects).Name != "" {
		t.Error("one replica has a budget")
	}
}

// chartMigrateMisses says what is wrong with the migration, which runs before everything
// else of a release and so finds only secrets that are there before.
func chartMigrateMisses(objects []any) (m misses) {
	job := one[batchv1.Job](objects)
	m.add("", migrateMisses(objects))
	m.want(job.Annotations["helm.sh/hook"] == "pre-install,pre-upgrade" && strings.Contains(job.Annotations["helm.sh/hook-delete-policy"], "before-hook-creation"),
		"the migration has the annotations %v", job.Annotations)
	weight, _ := strconv.Atoi(job.Annotations["helm.sh/hook-weight"])
	for _, source := range sources(job.Spec.Template.Spec.Volumes[0]) {
		for _, object := range objects {
			if secret, ok := object.(*corev1.Secret); ok && secret.Name == source.Name {
				w, err := strconv.Atoi(secret.Annotations["helm.sh/hook-weight"])
				m.want(err == nil && w < weight && secret.Annotations["helm.sh/hook"] != "", "the migration runs before the secret %s is made", secret.Name)
			}
		}
	}
	return m
}

// secretsOf are the keys of secrets by their names; of those that the chart doesn't make,
// nil.
func secretsOf(objects []any, existing ...string) map[string][]string {
	all := map[string][]string{"orders-wirefence-tls": {"tls.crt", "tls.key"}} // cert-manager's
	for _, name := range existing {
		all[name] = nil
	}
	for _, object := range objects {
		if secret, ok := object.(*corev1.Secret); ok {
			all[secret.Name] = slices.Collect(maps.Keys(secret.StringData))
		}
	}
	return all
}

func deployed(objects []any) *appsv1.Deployment { return one[appsv1.Deployment](objects) }

func asYAML(t *testing.T, v any) string {
	t.Helper()
	text, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
