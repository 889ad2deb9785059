package deploy

import (
	"path/filepath"
	"strings"
	"testing"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"
)

const overlayDir = "../kubernetes-tls"

// patched returns an object of the plain manifests with a patch of the overlay, merged as
// kustomize does.
func patched[T any](t *testing.T, manifestName, patchName string) *T {
	t.Helper()
	patch := read(t, filepath.Join(overlayDir, patchName))
	if _, err := decode(patch); err != nil {
		t.Fatalf("%s: %v", patchName, err)
	}
	patchJSON, err := yaml.YAMLToJSON([]byte(patch))
	if err != nil {
		t.Fatal(err)
	}
	original, err := yaml.YAMLToJSON([]byte(asYAML(t, one[T](manifest(t, filepath.Join(manifestDir, manifestName))))))
	if err != nil {
		t.Fatal(err)
	}
	merged, err := strategicpatch.StrategicMergePatch(original, patchJSON, *new(T))
	if err != nil {
		t.Fatal(err)
	}
	object := new(T)
	if err := yaml.UnmarshalStrict(merged, object); err != nil {
		t.Fatal(err)
	}
	return object
}

// The overlay is the plain proxy with TLS on both sides and on the admin port.
func TestOverlay(t *testing.T) {
	t.Parallel()
	for _, object := range manifest(t, overlayDir+"/kustomization.yaml") {
		k := object.(*kustomization)
		if len(k.Resources) != 1 || k.Resources[0] != "../kubernetes" || len(k.Patches) != 2 {
			t.Errorf("the overlay is of %v with %v", k.Resources, k.Patches)
		}
	}
	given := map[string][]string{
		"wirefence-issuer": {"database-url"}, "wirefence-tokens": {"tokens"}, "wirefence-owner": {"database-url"},
		"wirefence-tls": {"tls.crt", "tls.key"}, "postgres-ca": {"ca.crt"}, "wirefence-users": {"users.txt"},
	}
	deployment := patched[appsv1.Deployment](t, "standalone.yaml", "proxy.yaml")
	objects := manifest(t, manifestDir+"/standalone.yaml")
	for i, object := range objects {
		if _, is := object.(*appsv1.Deployment); is {
			objects[i] = deployment
		}
	}
	pod := deployment.Spec.Template.Spec
	standaloneMisses(objects).report(t, "standalone.yaml")
	mountMisses(pod, given).report(t, "standalone.yaml")
	proxy := pod.Containers[0]
	env := environment(proxy)
	if !strings.Contains(env["WIREFENCE_UPSTREAM"], "sslmode=verify-full") || env["WIREFENCE_TLS_MODE"] != "require" || env["WIREFENCE_AUTH_FILE"] == "" {
		t.Errorf("there is no TLS on both sides: %v", env)
	}
	for _, probe := range []*corev1.Probe{proxy.StartupProbe, proxy.ReadinessProbe, proxy.LivenessProbe} {
		if probe.HTTPGet.Scheme != corev1.URISchemeHTTPS || env["WIREFENCE_ADMIN_TLS_CERT_FILE"] == "" {
			t.Errorf("a probe asks by %q", probe.HTTPGet.Scheme)
		}
	}
	if scheme := deployment.Spec.Template.Annotations["prometheus.io/scheme"]; scheme != "https" {
		t.Errorf("Prometheus asks by %q", scheme)
	}
	job := patched[batchv1.Job](t, "migrate.yaml", "migrate.yaml")
	migrateMisses([]any{job}).report(t, "migrate.yaml")
	mountMisses(job.Spec.Template.Spec, given).report(t, "migrate.yaml")
	certificate := one[certmanagerv1.Certificate](manifest(t, overlayDir+"/certificate.yaml"))
	if certificate.Spec.SecretName != "wirefence-tls" {
		t.Errorf("the certificate is kept in %s", certificate.Spec.SecretName)
	}
}
