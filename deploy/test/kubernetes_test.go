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
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const wirefenceImage = "wirefence/wirefence:"

// checks says what the objects of each file must have.
var checks = map[string]func(objects []any, known map[string]bool) []string{
	"sidecar.yaml":       sidecarMisses,
	"standalone.yaml":    standaloneMisses,
	"migrate.yaml":       migrateMisses,
	"networkpolicy.yaml": policyMisses,
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
		{"sidecar.yaml", "              valueFrom:\n                secretKeyRef:\n                  name: wirefence-issuer\n                  key: database-url\n", "              value: postgres://issuer:secret@postgres/app\n", "is not from a secret"},
		{"sidecar.yaml", "automountServiceAccountToken: false", "automountServiceAccountToken: true", "token of Kubernetes"},
		{"standalone.yaml", "replicas: 2", "replicas: 1", "replicas"},
		{"standalone.yaml", "minAvailable: 1", "minAvailable: 2", "can't be drained"},
		{"standalone.yaml", "terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 5", "no time to drain"},
		{"standalone.yaml", "targetPort: postgres", "targetPort: postgresql", "service's port"},
		{"standalone.yaml", "    app.kubernetes.io/component: proxy\n  # The admin", "    app.kubernetes.io/component: proxies\n  # The admin", "service selects"},
		{"standalone.yaml", "wirefence:0.1.0", "wirefence:latest", "image"},
		{"standalone.yaml", "          livenessProbe:\n            httpGet:\n              path: /livez\n              port: admin\n", "          livenessProbe:\n            httpGet:\n              path: /livez\n              port: postgres\n", "liveness probe"},
		{"migrate.yaml", "restartPolicy: Never", "restartPolicy: Always", "job restarts"},
		{"migrate.yaml", "args: [\"migrate\"]", "args: [\"proxy\"]", "runs proxy"},
		{"migrate.yaml", "name: wirefence-owner\n", "name: wirefence-issuer\n", "owner's secret"},
		{"networkpolicy.yaml", "              app.kubernetes.io/component: proxy\n        - podSelector", "              app.kubernetes.io/component: web\n        - podSelector", "doesn't admit the proxy"},
		{"networkpolicy.yaml", "          port: 5432", "          port: 6432", "port 5432"},
		{"networkpolicy.yaml", "    - from:\n", "    - {}\n    - from:\n", "admits others"},
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
	proxy := pod.Containers[0]
	misses = append(misses, proxyMisses(proxy, known)...)
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
	for _, variable := range container.Env {
		if variable.ValueFrom == nil || variable.ValueFrom.SecretKeyRef == nil || variable.ValueFrom.SecretKeyRef.Name != "wirefence-owner" {
			misses = append(misses, variable.Name+" is not from the owner's secret")
		}
	}
	return misses
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
	for component, in := range admitted {
		if !in {
			misses = append(misses, "it doesn't admit the "+component)
		}
	}
	return misses
}

// podMisses checks what every pod must have, in all its containers.
func podMisses(pod corev1.PodSpec) (misses []string) {
	if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
		misses = append(misses, "the pod is given a token of Kubernetes")
	}
	security := pod.SecurityContext
	if security == nil || security.RunAsNonRoot == nil || !*security.RunAsNonRoot || security.RunAsUser == nil || *security.RunAsUser == 0 {
		misses = append(misses, "the pod may run as root")
	}
	if security == nil || security.SeccompProfile == nil || security.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		misses = append(misses, "the pod has no seccomp profile")
	}
	for _, container := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, miss := range containerMisses(container) {
			misses = append(misses, "container "+container.Name+" "+miss)
		}
	}
	return misses
}

func containerMisses(container corev1.Container) (misses []string) {
	security := container.SecurityContext
	if security == nil {
		return []string{"has no security context"}
	}
	if security.RunAsNonRoot != nil && !*security.RunAsNonRoot || security.RunAsUser != nil && *security.RunAsUser == 0 {
		misses = append(misses, "may run as root")
	}
	if security.Privileged != nil && *security.Privileged || security.AllowPrivilegeEscalation == nil || *security.AllowPrivilegeEscalation {
		misses = append(misses, "may escalate its privileges")
	}
	if security.ReadOnlyRootFilesystem == nil || !*security.ReadOnlyRootFilesystem {
		misses = append(misses, "writes to its root file system")
	}
	if c := security.Capabilities; c == nil || !slices.Equal(c.Drop, []corev1.Capability{"ALL"}) || len(c.Add) > 0 {
		misses = append(misses, "keeps capabilities")
	}
	if container.Resources.Requests.Cpu().IsZero() || container.Resources.Requests.Memory().IsZero() {
		misses = append(misses, "requests no resources")
	}
	if container.Resources.Limits.Memory().IsZero() {
		misses = append(misses, "has no limit of memory")
	}
	if _, tag, found := strings.Cut(container.Image, ":"); !found || tag == "latest" {
		misses = append(misses, "has an image of no fixed version")
	}
	seen := map[string]bool{}
	for _, variable := range container.Env {
		if seen[variable.Name] {
			misses = append(misses, "has "+variable.Name+" twice")
		}
		seen[variable.Name] = true
		secret := strings.HasSuffix(variable.Name, "PASSWORD") || variable.Name == "WIREFENCE_DATABASE_URL" || variable.Name == "WIREFENCE_REDIS_URL"
		if secret && (variable.ValueFrom == nil || variable.ValueFrom.SecretKeyRef == nil) {
			misses = append(misses, "has a "+variable.Name+" that is not from a secret")
		}
	}
	return misses
}

// proxyMisses checks a container that runs the proxy.
func proxyMisses(proxy corev1.Container, known map[string]bool) []string {
	misses := runs(proxy, "proxy")
	misses = append(misses, settingsMisses("proxy", environment(proxy), known)...)
	for _, p := range []struct {
		name, path string
		probe      *corev1.Probe
	}{
		{"startup", "/readyz", proxy.StartupProbe},
		{"readiness", "/readyz", proxy.ReadinessProbe},
		{"liveness", "/livez", proxy.LivenessProbe},
	} {
		if p.probe == nil || p.probe.HTTPGet == nil || p.probe.HTTPGet.Path != p.path || p.probe.HTTPGet.Port.String() != "admin" {
			misses = append(misses, "the "+p.name+" probe doesn't get "+p.path+" of the admin port")
		}
	}
	admin := slices.IndexFunc(proxy.Ports, func(p corev1.ContainerPort) bool { return p.Name == "admin" })
	if admin < 0 || !strings.HasSuffix(environment(proxy)["WIREFENCE_ADMIN_LISTEN"], fmt.Sprintf(":%d", proxy.Ports[admin].ContainerPort)) {
		misses = append(misses, "the admin port is not that of WIREFENCE_ADMIN_LISTEN")
	}
	return misses
}

func runs(container corev1.Container, command string) (misses []string) {
	if !strings.HasPrefix(container.Image, wirefenceImage) {
		misses = append(misses, "its image is not Wirefence's")
	}
	if len(container.Command) > 0 || !slices.Equal(container.Args, []string{command}) {
		misses = append(misses, "it runs "+strings.Join(append(container.Command, container.Args...), " "))
	}
	return misses
}

func environment(container corev1.Container) map[string]string {
	env := map[string]string{}
	for _, variable := range container.Env {
		env[variable.Name] = variable.Value
	}
	return env
}

func value(container corev1.Container, name string) string { return environment(container)[name] }

func selects(selector *metav1.LabelSelector, set labels.Set) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && !s.Empty() && s.Matches(set)
}

// memoryMisses holds Go's soft limit of memory to the container's hard one, in every
// container of a proxy.
func memoryMisses(pod corev1.PodSpec) (misses []string) {
	for _, container := range slices.Concat(pod.InitContainers, pod.Containers) {
		if !strings.HasPrefix(container.Image, wirefenceImage) || !slices.Equal(container.Args, []string{"proxy"}) {
			continue
		}
		soft, err := resource.ParseQuantity(strings.TrimSuffix(value(container, "GOMEMLIMIT"), "B"))
		hard := container.Resources.Limits.Memory().Value()
		if err != nil || soft.Value() >= hard || soft.Value() < hard*3/4 {
			misses = append(misses, fmt.Sprintf("container %s: GOMEMLIMIT is %q of %d bytes", container.Name, value(container, "GOMEMLIMIT"), hard))
		}
	}
	return misses
}

// clientPolicyMisses holds the proxy's policy to: clients on the session port and on the
// API's, and monitoring alone on the admin port.
func clientPolicyMisses(policy *networkingv1.NetworkPolicy) (misses []string) {
	admitted := map[int]string{}
	for _, rule := range policy.Spec.Ingress {
		for _, port := range rule.Ports {
			for _, peer := range rule.From {
				switch {
				case peer.NamespaceSelector != nil && peer.PodSelector == nil && peer.NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"] == "monitoring":
					admitted[port.Port.IntValue()] += "monitoring "
				case peer.NamespaceSelector == nil && peer.PodSelector != nil && peer.PodSelector.MatchLabels["wirefence.client"] == "true":
					admitted[port.Port.IntValue()] += "clients "
				default:
					admitted[port.Port.IntValue()] += "others "
				}
			}
			if len(rule.From) == 0 {
				admitted[port.Port.IntValue()] += "everybody "
			}
		}
		if len(rule.Ports) == 0 {
			misses = append(misses, "a rule is for every port")
		}
	}
	for port, want := range map[int]string{6433: "clients ", 9434: "clients ", 9433: "monitoring "} {
		if admitted[port] != want {
			misses = append(misses, fmt.Sprintf("port %d admits %q, not %q", port, admitted[port], want))
		}
		delete(admitted, port)
	}
	if len(admitted) > 0 {
		misses = append(misses, fmt.Sprintf("other ports admit %v", admitted))
	}
	return misses
}
