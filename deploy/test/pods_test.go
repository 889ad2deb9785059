package deploy

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// podMisses checks what every pod must have, in all its containers.
func podMisses(pod corev1.PodSpec) (m misses) {
	m.want(pod.AutomountServiceAccountToken != nil && !*pod.AutomountServiceAccountToken, "the pod is given a token of Kubernetes")
	security := cmp.Or(pod.SecurityContext, &corev1.PodSecurityContext{})
	m.want(security.RunAsNonRoot != nil && *security.RunAsNonRoot && security.RunAsUser != nil && *security.RunAsUser != 0, "the pod may run as root")
	m.want(security.SeccompProfile != nil && security.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault, "the pod has no seccomp profile")
	for _, container := range slices.Concat(pod.InitContainers, pod.Containers) {
		m.add("container "+container.Name+" ", containerMisses(container))
	}
	return m
}

func containerMisses(container corev1.Container) (m misses) {
	security := container.SecurityContext
	if security == nil {
		return misses{"has no security context"}
	}
	m.want((security.RunAsNonRoot == nil || *security.RunAsNonRoot) && (security.RunAsUser == nil || *security.RunAsUser != 0), "may run as root")
	m.want((security.Privileged == nil || !*security.Privileged) && security.AllowPrivilegeEscalation != nil && !*security.AllowPrivilegeEscalation, "may escalate its privileges")
	m.want(security.ReadOnlyRootFilesystem != nil && *security.ReadOnlyRootFilesystem, "writes to its root file system")
	c := security.Capabilities
	m.want(c != nil && slices.Equal(c.Drop, []corev1.Capability{"ALL"}) && len(c.Add) == 0, "keeps capabilities")
	requests, hard := container.Resources.Requests, container.Resources.Limits.Memory()
	m.want(!requests.Cpu().IsZero() && !requests.Memory().IsZero(), "requests no resources")
	m.want(!hard.IsZero(), "has no limit of memory")
	if strings.HasPrefix(container.Image, wirefenceImage) && slices.Equal(container.Args, []string{"proxy"}) {
		// Go's soft limit of memory is somewhat below the hard one.
		soft, err := resource.ParseQuantity(strings.TrimSuffix(value(container, "GOMEMLIMIT"), "B"))
		m.want(err == nil && soft.Value() < hard.Value() && soft.Value() >= hard.Value()*3/4, "has GOMEMLIMIT %q of %v", value(container, "GOMEMLIMIT"), hard)
	}
	_, tag, found := strings.Cut(container.Image, ":")
	m.want(found && tag != "latest", "has an image of no fixed version")
	seen := map[string]bool{}
	for _, variable := range container.Env {
		m.want(!seen[variable.Name], "has %s twice", variable.Name)
		seen[variable.Name] = true
		secret := strings.HasSuffix(variable.Name, "PASSWORD") || variable.Name == "WIREFENCE_DATABASE_URL" || variable.Name == "WIREFENCE_REDIS_URL"
		m.want(!secret || variable.ValueFrom != nil && variable.ValueFrom.SecretKeyRef != nil, "has a %s that is not from a secret", variable.Name)
	}
	return m
}

// proxyMisses checks a container that runs the proxy.
func proxyMisses(proxy corev1.Container) (m misses) {
	m.add("", runs(proxy, "proxy"))
	m.add("", settingsMisses("proxy", environment(proxy)))
	for _, p := range []struct {
		name, path string
		probe      *corev1.Probe
	}{
		{"startup", "/readyz", proxy.StartupProbe},
		{"readiness", "/readyz", proxy.ReadinessProbe},
		{"liveness", "/livez", proxy.LivenessProbe},
	} {
		m.want(p.probe != nil && p.probe.HTTPGet != nil && p.probe.HTTPGet.Path == p.path && p.probe.HTTPGet.Port.String() == "admin",
			"the %s probe doesn't get %s of the admin port", p.name, p.path)
	}
	m.want(slices.ContainsFunc(proxy.Ports, func(p corev1.ContainerPort) bool {
		return p.Name == "admin" && strings.HasSuffix(value(proxy, "WIREFENCE_ADMIN_LISTEN"), fmt.Sprintf(":%d", p.ContainerPort))
	}), "the admin port is not that of WIREFENCE_ADMIN_LISTEN")
	return m
}

func runs(container corev1.Container, command ...string) (m misses) {
	m.want(strings.HasPrefix(container.Image, wirefenceImage), "its image is not Wirefence's")
	m.want(len(container.Command) == 0 && slices.Equal(container.Args, command), "it runs %s", strings.Join(append(container.Command, container.Args...), " "))
	return m
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

// clientPolicyMisses holds the proxy's policy to: clients on the session port and on the
// API's, and monitoring alone on the admin port.
func clientPolicyMisses(policy *networkingv1.NetworkPolicy) (m misses) {
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
		m.want(len(rule.Ports) > 0, "a rule is for every port")
	}
	for port, want := range map[int]string{6433: "clients ", 9434: "clients ", 9433: "monitoring "} {
		m.want(admitted[port] == want, "port %d admits %q, not %q", port, admitted[port], want)
		delete(admitted, port)
	}
	m.want(len(admitted) == 0, "other ports admit %v", admitted)
	return m
}

// sources are the secrets that a volume is made of.
func sources(volume corev1.Volume) (all []*corev1.SecretProjection) {
	if volume.Projected != nil {
		for _, source := range volume.Projected.Sources {
			all = append(all, source.Secret)
		}
	}
	return all
}

// mountMisses holds each setting of a pod that names a file to the files that its container
// has, and each file to the secrets that there are.
func mountMisses(pod corev1.PodSpec, secrets map[string][]string) (m misses) {
	for _, container := range slices.Concat(pod.InitContainers, pod.Containers) {
		files := map[string]bool{}
		for _, mount := range container.VolumeMounts {
			i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
			if i < 0 {
				m = append(m, "there is no volume "+mount.Name)
				continue
			}
			for _, source := range sources(pod.Volumes[i]) {
				keys, there := secrets[source.Name]
				m.want(there, "there is no secret %s", source.Name)
				for _, item := range source.Items {
					m.want(keys == nil || slices.Contains(keys, item.Key), "the secret %s has no %s", source.Name, item.Key)
					files[path.Join(mount.MountPath, item.Path)] = true
				}
			}
		}
		for name, value := range environment(container) {
			m.want(!strings.HasSuffix(name, "_FILE") || files[value], "%s is %s, which is not there", name, value)
			_, file, has := strings.Cut(value, "sslrootcert=")
			m.want(!has || files[file], "%s names %s, which is not there", name, file)
		}
	}
	return m
}
