package deploy

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const wirefenceImage = "wirefence/wirefence:"

// checks says what the objects of each file must have.
var checks = map[string]func(objects []any, known map[string]bool) []string{
	"sidecar.yaml":       sidecarMisses,
	"standalone.yaml":    plainStandaloneMisses,
	"migrate.yaml":       plainMigrateMisses,
	"networkpolicy.yaml": policyMisses,
	"injection.yaml":     func([]any, map[string]bool) []string { return nil }, // inject_test.go
}

func TestKubernetes(t *testing.T) {
	t.Parallel()
	known := documented(t)
	for name, check := range checks {
		for _, miss := range check(manifest(t, name), known) {
			t.Errorf("%s: %s", name, miss)
		}
	}
}

func TestKubernetesBroken(t *testing.T) {
	t.Parallel()
	known := documented(t)
	for _, c := range []struct{ file, old, replacement, noticed string }{
		{"sidecar.yaml", "          restartPolicy: Always\n", "", "is no native sidecar"},
		{"sidecar.yaml", "@127.0.0.1:6433", "@postgres:5432", "application doesn't connect to the sidecar"},
		{"sidecar.yaml", "value: 127.0.0.1:6433", "value: 0.0.0.0:6433", "listens beyond its pod"},
		{"sidecar.yaml", "value: 0.0.0.0:9433", "value: 127.0.0.1:9433", "probes can't reach"},
		{"sidecar.yaml", "WIREFENCE_MODE", "WIREFENCE_MOOD", "WIREFENCE_MOOD is no setting"},
		{"sidecar.yaml", "startupProbe:", "readinessProbe2:", "unknown field"},
		{"sidecar.yaml", "path: /livez", "path: /readyz", "liveness probe"},
		{"sidecar.yaml", "runAsNonRoot: true", "runAsNonRoot: false", "may run as root"},
		{"sidecar.yaml", "type: RuntimeDefault", "type: Unconfined", "seccomp"},
		{"sidecar.yaml", "allowPrivilegeEscalation: false", "allowPrivilegeEscalation: true", "escalate"},
		{"sidecar.yaml", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "writes to its root"},
		{"sidecar.yaml", "drop: [\"ALL\"]", "drop: [\"NET_RAW\"]", "capabilities"},
		{"sidecar.yaml", "              memory: 128Mi\n", "              cpu: 1\n", "no limit of memory"},
		{"sidecar.yaml", "WIREFENCE_DATABASE_URL_FILE\n              value: /etc/wirefence/issuer/database-url", "WIREFENCE_DATABASE_URL\n              value: postgres://issuer:secret@postgres/app", "is not from a secret"},
		{"sidecar.yaml", "path: issuer/database-url", "path: issuer/url", "which is not there"},
		{"sidecar.yaml", "value: 115MiB", "value: 128MiB", "GOMEMLIMIT"},
		{"sidecar.yaml", "          volumeMounts:\n            - name: wirefence\n", "          volumeMounts:\n            - name: issuer\n", "there is no volume issuer"},
		{"sidecar.yaml", "automountServiceAccountToken: false", "automountServiceAccountToken: true", "token of Kubernetes"},
		{"standalone.yaml", "replicas: 2", "replicas: 1", "replicas"},
		{"standalone.yaml", "minAvailable: 1", "minAvailable: 2", "can't be drained"},
		{"standalone.yaml", "terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 5", "no time to drain"},
		{"standalone.yaml", "targetPort: postgres", "targetPort: postgresql", "service's port"},
		{"standalone.yaml", "targetPort: api", "targetPort: admin", "offers the admin port"},
		{"standalone.yaml", "    - name: api\n      port: 9434\n      targetPort: api\n", "", "service offers no API"},
		{"standalone.yaml", "value: 0.0.0.0:9434", "value: 0.0.0.0:9435", "API's port"},
		{"standalone.yaml", "          name: wirefence-tokens\n", "          name: tokens\n", "there is no secret tokens"},
		{"standalone.yaml", "value: 230MiB", "value: 2GiB", "GOMEMLIMIT"},
		{"standalone.yaml", "prometheus.io/port: \"9433\"", "prometheus.io/port: \"6433\"", "scrapes port 6433"},
		{"standalone.yaml", "    app.kubernetes.io/component: proxy\n  # The admin", "    app.kubernetes.io/component: proxies\n  # The admin", "service selects"},
		{"standalone.yaml", "wirefence:0.1.0", "wirefence:latest", "image"},
		{"standalone.yaml", "          livenessProbe:\n            httpGet:\n              path: /livez\n              port: admin\n", "          livenessProbe:\n            httpGet:\n              path: /livez\n              port: postgres\n", "liveness probe"},
		{"migrate.yaml", "restartPolicy: Never", "restartPolicy: Always", "job restarts"},
		{"migrate.yaml", "args: [\"migrate\"]", "args: [\"proxy\"]", "runs proxy"},
		{"migrate.yaml", "name: wirefence-owner\n", "name: wirefence-issuer\n", "there is no secret wirefence-issuer"},
		{"migrate.yaml", "  ttlSecondsAfterFinished: 600\n", "", "job stays for ever"},
		{"networkpolicy.yaml", "              app.kubernetes.io/component: proxy\n        - podSelector", "              app.kubernetes.io/component: web\n        - podSelector", "doesn't admit the proxy"},
		{"networkpolicy.yaml", "          port: 5432", "          port: 6432", "port 5432"},
		{"networkpolicy.yaml", "    - from:\n", "    - {}\n    - from:\n", "admits others"},
		{"networkpolicy.yaml", "          port: 9434\n", "          port: 9433\n", "port 9433 admits"},
		{"networkpolicy.yaml", "policyTypes: [\"Ingress\"]", "policyTypes: [\"Egress\"]", "isn't of ingress"},
	} {
		t.Run(c.file+" "+c.noticed, func(t *testing.T) {
			t.Parallel()
			objects, err := decode(broken(t, read(t, filepath.Join(manifestDir, c.file)), c.old, c.replacement))
			if err != nil {
				expect(t, []string{err.Error()}, c.noticed)
				return
			}
			expect(t, checks[c.file](objects, known), c.noticed)
		})
	}
}

// one returns the only object of a type, or a zero one.
func one[T any](objects []any) *T {
	for _, object := range objects {
		if typed, ok := object.(*T); ok {
			return typed
		}
	}
	return new(T)
}

func sidecarMisses(objects []any, known map[string]bool) (misses []string) {
	pod := one[appsv1.Deployment](objects).Spec.Template.Spec
	misses = podMisses(pod)
	if len(pod.InitContainers) != 1 || len(pod.Containers) != 1 {
		return append(misses, "it is not one sidecar and one application")
	}
	sidecar, app := pod.InitContainers[0], pod.Containers[0]
	if sidecar.RestartPolicy == nil || *sidecar.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		misses = append(misses, "it is no native sidecar")
	}
	misses = append(misses, proxyMisses(sidecar, known)...)
	misses = append(misses, slices.Concat(memoryMisses(pod), mountMisses(pod, map[string][]string{"wirefence-issuer": {"database-url"}}))...)
	env := environment(sidecar)
	if !strings.HasPrefix(env["WIREFENCE_LISTEN"], "127.0.0.1:") {
		misses = append(misses, "the sidecar listens beyond its pod")
	}
	if url := value(app, "DATABASE_URL"); !strings.Contains(url, "@"+env["WIREFENCE_LISTEN"]+"/") {
		misses = append(misses, "the application doesn't connect to the sidecar")
	}
	return misses
}

func standaloneMisses(objects []any, known map[string]bool) (misses []string) {
	deployment := one[appsv1.Deployment](objects)
	pod := deployment.Spec.Template.Spec
	misses = podMisses(pod)
	if len(pod.Containers) != 1 {
		return append(misses, "it is not one container")
	}
	proxy, env := pod.Containers[0], environment(pod.Containers[0])
	misses = append(misses, slices.Concat(proxyMisses(proxy, known), memoryMisses(pod))...)
	if r := deployment.Spec.Replicas; r == nil || *r < 2 {
		misses = append(misses, "fewer than two replicas")
	}
	if grace := pod.TerminationGracePeriodSeconds; grace == nil || *grace < 30 {
		misses = append(misses, "there is no time to drain")
	}
	template := labels.Set(deployment.Spec.Template.Labels)
	service := one[corev1.Service](objects)
	if len(service.Spec.Selector) == 0 || !labels.SelectorFromSet(service.Spec.Selector).Matches(template) {
		misses = append(misses, "the service selects other pods")
	}
	if api := env["WIREFENCE_API_LISTEN"]; !slices.ContainsFunc(proxy.Ports, func(p corev1.ContainerPort) bool {
		return p.Name == "api" && api == fmt.Sprint("0.0.0.0:", p.ContainerPort)
	}) {
		misses = append(misses, "the API's port is none of the container's")
	}
	if !slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.TargetPort.String() == "api" }) {
		misses = append(misses, "the service offers no API")
	}
	if port := deployment.Spec.Template.Annotations["prometheus.io/port"]; port != "9433" {
		misses = append(misses, "Prometheus scrapes port "+port)
	}
	for _, port := range service.Spec.Ports {
		if !slices.ContainsFunc(proxy.Ports, func(p corev1.ContainerPort) bool { return p.Name == port.TargetPort.String() }) {
			misses = append(misses, "the service's port is none of the proxy's")
		}
		if port.TargetPort.String() == "admin" {
			misses = append(misses, "the service offers the admin port")
		}
	}
	budget := one[policyv1.PodDisruptionBudget](objects)
	if budget.Spec.MinAvailable == nil || budget.Spec.MinAvailable.IntValue() < 1 {
		misses = append(misses, "all pods may go at once")
	} else if r := deployment.Spec.Replicas; r != nil && budget.Spec.MinAvailable.IntValue() >= int(*r) {
		misses = append(misses, "a node can't be drained")
	}
	if !selects(budget.Spec.Selector, template) || !selects(deployment.Spec.Selector, template) {
		misses = append(misses, "a selector doesn't match the pods")
	}
	return misses
}

func migrateMisses(objects []any, known map[string]bool) (misses []string) {
	pod := one[batchv1.Job](objects).Spec.Template.Spec
	misses = podMisses(pod)
	if pod.RestartPolicy != corev1.RestartPolicyNever {
		misses = append(misses, "the job restarts its container")
	}
	if len(pod.Containers) != 1 {
		return append(misses, "it is not one container")
	}
	container := pod.Containers[0]
	misses = append(misses, runs(container, "migrate")...)
	misses = append(misses, settingsMisses("migrate", environment(container), known)...)
	return misses
}

// plainMigrateMisses checks the job of the plain manifests.
func plainMigrateMisses(objects []any, known map[string]bool) []string {
	job := one[batchv1.Job](objects)
	misses := append(migrateMisses(objects, known), mountMisses(job.Spec.Template.Spec, map[string][]string{"wirefence-owner": {"database-url"}})...)
	if job.Spec.TTLSecondsAfterFinished == nil || *job.Spec.TTLSecondsAfterFinished > 3600 {
		misses = append(misses, "the job stays for ever, and can't be applied again")
	}
	return misses
}

// plainStandaloneMisses checks the proxy of the plain manifests.
func plainStandaloneMisses(objects []any, known map[string]bool) []string {
	pod := one[appsv1.Deployment](objects).Spec.Template.Spec
	return append(standaloneMisses(objects, known), mountMisses(pod, map[string][]string{"wirefence-issuer": {"database-url"}, "wirefence-tokens": {"tokens"}})...)
}

// policyMisses holds the database's policy to: the proxy and the migration, on
// 5432, and nobody else.
func policyMisses(objects []any, _ map[string]bool) (misses []string) {
	if len(objects) == 0 {
		return []string{"there is no policy"}
	}
	policy, ok := objects[0].(*networkingv1.NetworkPolicy)
	if !ok || policy.Spec.PodSelector.MatchLabels["app.kubernetes.io/name"] != "postgres" {
		return []string{"the first object is not the database's policy"}
	}
	if !slices.Equal(policy.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}) {
		misses = append(misses, "it isn't of ingress")
	}
	admitted := map[string]bool{"proxy": false, "migrate": false}
	for _, rule := range policy.Spec.Ingress {
		if len(rule.From) == 0 {
			misses = append(misses, "it admits others: everybody")
		}
		for _, peer := range rule.From {
			component := ""
			if peer.PodSelector != nil && peer.NamespaceSelector == nil && peer.IPBlock == nil &&
				peer.PodSelector.MatchLabels["app.kubernetes.io/name"] == "wirefence" {
				component = peer.PodSelector.MatchLabels["app.kubernetes.io/component"]
			}
			if _, expected := admitted[component]; !expected {
				misses = append(misses, fmt.Sprintf("it admits others: %v", peer))
				continue
			}
			admitted[component] = true
		}
		if len(rule.Ports) != 1 || rule.Ports[0].Port == nil || rule.Ports[0].Port.IntValue() != 5432 {
			misses = append(misses, "it is not for port 5432 alone")
		}
	}
	if len(objects) != 2 {
		return append(misses, "there is no policy for clients")
	}
	misses = append(misses, clientPolicyMisses(objects[1].(*networkingv1.NetworkPolicy))...)
	for component, in := range admitted {
		if !in {
			misses = append(misses, "it doesn't admit the "+component)
		}
	}
	return misses
}
