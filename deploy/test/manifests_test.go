package deploy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	admissionv1beta1 "k8s.io/api/admissionregistration/v1beta1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/wirefence/wirefence/internal/pages"
)

const manifestDir = "../kubernetes"

// kinds are the manifests that are known; a file with any other is refused.
var kinds = map[metav1.TypeMeta]func() any{
	{APIVersion: "apps/v1", Kind: "Deployment"}:                                                  func() any { return new(appsv1.Deployment) },
	{APIVersion: "batch/v1", Kind: "Job"}:                                                        func() any { return new(batchv1.Job) },
	{APIVersion: "batch/v1", Kind: "CronJob"}:                                                    func() any { return new(batchv1.CronJob) },
	{APIVersion: "v1", Kind: "Service"}:                                                          func() any { return new(corev1.Service) },
	{APIVersion: "policy/v1", Kind: "PodDisruptionBudget"}:                                       func() any { return new(policyv1.PodDisruptionBudget) },
	{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"}:                                  func() any { return new(networkingv1.NetworkPolicy) },
	{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "Role"}:                                   func() any { return new(rbacv1.Role) },
	{APIVersion: "v1", Kind: "Secret"}:                                                           func() any { return new(corev1.Secret) },
	{APIVersion: "v1", Kind: "ConfigMap"}:                                                        func() any { return new(corev1.ConfigMap) },
	{APIVersion: "cert-manager.io/v1", Kind: "Certificate"}:                                      func() any { return new(certmanagerv1.Certificate) },
	{APIVersion: "monitoring.coreos.com/v1", Kind: "PodMonitor"}:                                 func() any { return new(monitoringv1.PodMonitor) },
	{APIVersion: "monitoring.coreos.com/v1", Kind: "PrometheusRule"}:                             func() any { return new(monitoringv1.PrometheusRule) },
	{APIVersion: "admissionregistration.k8s.io/v1", Kind: "MutatingAdmissionPolicy"}:             func() any { return new(admissionv1.MutatingAdmissionPolicy) },
	{APIVersion: "admissionregistration.k8s.io/v1", Kind: "MutatingAdmissionPolicyBinding"}:      func() any { return new(admissionv1.MutatingAdmissionPolicyBinding) },
	{APIVersion: "admissionregistration.k8s.io/v1beta1", Kind: "MutatingAdmissionPolicy"}:        func() any { return new(admissionv1beta1.MutatingAdmissionPolicy) },
	{APIVersion: "admissionregistration.k8s.io/v1beta1", Kind: "MutatingAdmissionPolicyBinding"}: func() any { return new(admissionv1beta1.MutatingAdmissionPolicyBinding) },
	{APIVersion: "kustomize.config.k8s.io/v1beta1", Kind: "Kustomization"}:                       func() any { return new(kustomization) },
}

// kustomization is as much of kustomize's type as the repository uses.
type kustomization struct {
	metav1.TypeMeta `json:",inline"`
	Resources       []string `json:"resources"`
	Patches         []struct {
		Path string `json:"path"`
	} `json:"patches"`
	Images []struct {
		Name   string `json:"name"`
		NewTag string `json:"newTag"`
	} `json:"images"`
}

// decode reads all documents of a manifest strictly: a kind that is not known,
// a field that the kind doesn't have and a key that comes twice are errors.
func decode(text string) (objects []any, err error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal(document, &meta); err != nil {
			return nil, err
		}
		if commented(document) {
			continue
		}
		make, known := kinds[meta]
		if !known {
			return nil, fmt.Errorf("unknown kind %q of %q", meta.Kind, meta.APIVersion)
		}
		object := make()
		if err := yaml.UnmarshalStrict(document, object); err != nil {
			return nil, fmt.Errorf("%s: %w", meta.Kind, err)
		}
		objects = append(objects, object)
	}
}

// commented says that a document has comments alone.
func commented(document []byte) bool {
	for line := range bytes.Lines(document) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("---")) {
			return false
		}
	}
	return true
}

// manifest decodes a file.
func manifest(t *testing.T, file string) []any {
	t.Helper()
	objects, err := decode(read(t, file))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return objects
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"unknown kind":  "apiVersion: v1\nkind: Pot\n",
		"wrong version": "apiVersion: apps/v1beta1\nkind: Deployment\n",
		"unknown field": "apiVersion: v1\nkind: Service\nspec:\n  port: 1\n",
		"wrong type":    "apiVersion: v1\nkind: Service\nspec:\n  ports: 6433\n",
		"key twice":     "apiVersion: v1\nkind: Service\nspec: {}\nspec: {}\n",
		"no YAML":       "apiVersion: [",
	} {
		if _, err := decode(text); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// The CronJob that the documentation shows.
func TestTheCronJobDecodesStrictly(t *testing.T) {
	t.Parallel()
	text, err := pages.First("../../docs/howto/cron.md", "4. Decide by the exit status", "yaml")
	if err != nil {
		t.Fatal(err)
	}
	ofObjects(func(objects []any) (m misses) {
		spec := one[batchv1.CronJob](objects).Spec.JobTemplate.Spec
		m.want(len(objects) == 1 && spec.PodFailurePolicy != nil && spec.Template.Spec.RestartPolicy == corev1.RestartPolicyNever, "a policy for failed pods needs restartPolicy: Never")
		return m
	})(text).report(t, "howto/cron.md")
}

func kustomizationMisses(objects []any) (m misses) {
	for _, name := range one[kustomization](objects).Resources {
		_, err := os.Stat(filepath.Join(manifestDir, name))
		m.want(err == nil, "%v", err)
	}
	return m
}
