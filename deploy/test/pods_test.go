package deploy

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

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
