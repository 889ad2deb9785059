package deploy

import (
	"maps"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	admissionv1beta1 "k8s.io/api/admissionregistration/v1beta1"
	corev1 "k8s.io/api/core/v1"
)

// Without injection.enabled there is no policy, and with nothing else enabled there is
// nothing but the policy.
func TestChartInjection(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"sidecar.yaml", "standalone-tls.yaml", "postgres-only.yaml"} {
		if policy := one[admissionv1.MutatingAdmissionPolicy](mustRender(t, name, "v1.36.0")); policy.Name != "" {
			t.Errorf("%s makes the policy %s", name, policy.Name)
		}
	}
	if objects := mustRender(t, "injection.yaml", "v1.36.0"); len(objects) != 2 {
		t.Errorf("the policy and its binding are %d objects", len(objects))
	}
}

// What the values ask for is what pods are given.
func TestChartInjectionValues(t *testing.T) {
	t.Parallel()
	objects := mustRender(t, "injection-all.yaml", "v1.36.0")
	policy, binding := one[admissionv1.MutatingAdmissionPolicy](objects), one[admissionv1.MutatingAdmissionPolicyBinding](objects)
	if policy.Name != "wirefence-production" || binding.Spec.PolicyName != policy.Name || *policy.Spec.FailurePolicy != admissionv1.Ignore {
		t.Errorf("the policy is %s, its binding of %s, and if it fails: %s", policy.Name, binding.Spec.PolicyName, *policy.Spec.FailurePolicy)
	}
	if in := binding.Spec.MatchResources; in == nil || !maps.Equal(in.NamespaceSelector.MatchLabels, map[string]string{"stage": "production"}) {
		t.Errorf("it is for %+v", in)
	}
	pod, _, _ := mustCompile(t, objects).admit(t, application(nil))
	if len(pod.Spec.InitContainers) != 1 {
		t.Fatal("the pod has no sidecar")
	}
	sidecar := pod.Spec.InitContainers[0]
	if image := "registry.example.com/wirefence/wirefence@sha256:" + strings.Repeat("0123456789abcdef", 4); sidecar.Image != image || sidecar.ImagePullPolicy != corev1.PullAlways {
		t.Errorf("the image is %s, pulled %s", sidecar.Image, sidecar.ImagePullPolicy)
	}
	for name, want := range map[string]string{
		"WIREFENCE_MAX_STATEMENT": "33554432",
		"WIREFENCE_LOG_FORMAT":    "json",
		"WIREFENCE_HISTORY":       "false",
		"WIREFENCE_AUTH_QUERY":    "SELECT \"name\", 'it''s' || '\\'\nFROM users WHERE name = $1",
		"GOMEMLIMIT":              "921MiB",
		"WIREFENCE_LEASE":         "reports.eu-1",
	} {
		if got := value(sidecar, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if from := sidecar.EnvFrom[0].ConfigMapRef.Name; from != "fence" {
		t.Errorf("the settings are from %s", from)
	}
	if volume := pod.Spec.Volumes[0]; volume.Secret == nil || volume.Secret.SecretName != "fence-issuer" || volume.Name != sidecar.VolumeMounts[0].Name {
		t.Errorf("the volume is %+v", volume)
	}
	cpu, nic := sidecar.Resources.Requests.Cpu(), sidecar.Resources.Limits["example.com/nic"]
	if cpu.Value() != 1 || nic.Value() != 1 || sidecar.StartupProbe.FailureThreshold != 300 {
		t.Errorf("it has %+v and %+v", sidecar.Resources, sidecar.StartupProbe)
	}
	if s := sidecar.SecurityContext; *s.RunAsUser != 1000900000 || s.SELinuxOptions.Level != "s0:c123,c456" {
		t.Errorf("its security context is %+v", s)
	}
}

// A number of the values is as it was written, however large it is.
func TestChartSettingsOfNumbers(t *testing.T) {
	t.Parallel()
	proxy := deployed(mustRender(t, "standalone-tls.yaml", "v1.36.0")).Spec.Template.Spec.Containers[0]
	if got := value(proxy, "WIREFENCE_MAX_STATEMENT"); got != "33554432" {
		t.Errorf("WIREFENCE_MAX_STATEMENT is %q", got)
	}
}

// Kubernetes 1.34 and 1.35 have the same policy as a beta, and older ones have none.
func TestChartInjectionVersions(t *testing.T) {
	t.Parallel()
	v1 := one[admissionv1.MutatingAdmissionPolicy](mustRender(t, "injection-all.yaml", "v1.36.0"))
	for _, version := range []string{"v1.34.0", "v1.35.2-gke.100"} {
		objects := mustRender(t, "injection-all.yaml", version)
		policy, binding := one[admissionv1beta1.MutatingAdmissionPolicy](objects), one[admissionv1beta1.MutatingAdmissionPolicyBinding](objects)
		if asYAML(t, policy.Spec) != asYAML(t, v1.Spec) || binding.Spec.PolicyName != policy.Name {
			t.Errorf("%s: the policy differs:\n%s", version, asYAML(t, policy.Spec))
		}
	}
	_, err := render(loadChart(t), valuesFile(t, "injection.yaml"), "v1.33.5")
	if err == nil || !strings.Contains(err.Error(), "needs Kubernetes 1.34") {
		t.Errorf("on 1.33 the error is %v", err)
	}
}

// What Kubernetes refuses in the values of the policy, the chart refuses before.
func TestChartInjectionRefuses(t *testing.T) {
	t.Parallel()
	for noticed, spoil := range map[string]map[string]any{
		"failurePolicy":     {"failurePolicy": "Warn"},
		"namespaceSelector": {"namespaceSelector": map[string]any{"stage": "production"}},
		"WIREFENCE_LEASE":   {"settings": map[string]any{"WIREFENCE_LEASE": "reports"}},
		"configMap":         {"configMap": "it's"},
		"enable":            {"enable": true},
	} {
		values := valuesFile(t, "injection.yaml")
		maps.Copy(values["injection"].(map[string]any), spoil)
		if _, err := render(loadChart(t), values, "v1.36.0"); err == nil || !strings.Contains(err.Error(), noticed) {
			t.Errorf("%v: %v", spoil, err)
		}
	}
}
