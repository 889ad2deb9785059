package deploy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	celenvironment "k8s.io/apiserver/pkg/cel/environment"
)

// injector applies a MutatingAdmissionPolicy to pods with the packages of Kubernetes'
// own API server, as its admission plugin does.
type injector struct {
	policy  *admissionv1.MutatingAdmissionPolicy
	matcher matchconditions.Matcher
	patches []patch.Patcher
}

// newInjector compiles a policy whose mutations are JSON patches.
func newInjector(policy *admissionv1.MutatingAdmissionPolicy) (*injector, error) {
	compiler, err := cel.NewCompositedCompiler(celenvironment.MustBaseEnvSet(celenvironment.DefaultCompatibilityVersion()))
	if err != nil {
		return nil, err
	}
	options := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	var conditions []cel.ExpressionAccessor
	for i := range policy.Spec.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&policy.Spec.MatchConditions[i]))
	}
	condition := compiler.CompileCondition(conditions, options, celenvironment.StoredExpressions)
	for _, err := range condition.CompilationErrors() {
		return nil, err
	}
	in := &injector{policy: policy, matcher: matchconditions.NewMatcher(condition, policy.Spec.FailurePolicy, "policy", "mutate", policy.Name)}
	options.HasPatchTypes = true
	for _, mutation := range policy.Spec.Mutations {
		expression := &patch.JSONPatchCondition{Expression: mutation.JSONPatch.Expression}
		evaluator := compiler.CompileMutatingEvaluator(expression, options, celenvironment.StoredExpressions)
		for _, err := range evaluator.CompilationErrors() {
			return nil, err
		}
		in.patches = append(in.patches, patch.NewJSONPatcher(evaluator))
	}
	return in, nil
}

// admit returns the pod that the policy makes of one. The constraints and the conditions
// are told apart: whether each lets the pod through to the patches.
func (in *injector) admit(t *testing.T, pod *corev1.Pod) (admitted *corev1.Pod, selected, matched bool) {
	t.Helper()
	admitted, selected, matched, err := in.apply(pod)
	if err != nil {
		t.Fatal(err)
	}
	return admitted, selected, matched
}

func (in *injector) apply(pod *corev1.Pod) (admitted *corev1.Pod, selected, matched bool, err error) {
	selected = selects(in.policy.Spec.MatchConstraints.ObjectSelector, labels.Set(pod.Labels))
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, selected, false, err
	}
	kind, pods := corev1.SchemeGroupVersion.WithKind("Pod"), corev1.SchemeGroupVersion.WithResource("pods")
	attributes := func(pod *corev1.Pod) *admission.VersionedAttributes {
		record := admission.NewAttributesRecord(pod, nil, kind, pod.Namespace, pod.Name, pods, "", admission.Create, &metav1.CreateOptions{}, false, nil)
		return &admission.VersionedAttributes{Attributes: record, VersionedKind: kind,
			VersionedObject: admission.NewLazyObject(pod), VersionedOldObject: admission.NewLazyObject(nil)}
	}
	admitted = pod.DeepCopy()
	result := in.matcher.Match(context.Background(), attributes(admitted), nil, nil)
	if result.Error != nil || !result.Matches {
		return admitted, selected, false, result.Error
	}
	for _, patcher := range in.patches {
		object, err := patcher.Patch(context.Background(), patch.Request{
			MatchedResource:     pods,
			VersionedAttributes: attributes(admitted),
			ObjectInterfaces:    admission.NewObjectInterfacesFromScheme(scheme),
		}, celconfig.RuntimeCELCostBudget)
		if err != nil {
			return nil, selected, true, err
		}
		admitted = object.(*corev1.Pod)
	}
	return admitted, selected, true, nil
}

// injections are the objects of the policy by the manifest, and by the chart.
func injections(t *testing.T) map[string][]any {
	t.Helper()
	return map[string][]any{"manifest": manifest(t, manifestDir+"/injection.yaml"), "chart": mustRender(t, "injection.yaml", "v1.36.0")}
}

func mustCompile(t *testing.T, objects []any) *injector {
	t.Helper()
	in, err := newInjector(one[admissionv1.MutatingAdmissionPolicy](objects))
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// application is a pod as its author wrote it, with more to it.
func application(more func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: "reports-", Namespace: "shop", Labels: map[string]string{"app": "reports", "wirefence.io/lease": "reports.eu-1"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "reports", Image: "example/reports:1.0.0", Env: []corev1.EnvVar{{Name: "A", Value: "b"}}}}},
	}
	if more != nil {
		more(pod)
	}
	return pod
}

func migrations(pod *corev1.Pod) {
	pod.Spec.InitContainers = []corev1.Container{{Name: "schema", Image: "example/schema:1.0.0"}, {Name: "warm", Image: "example/warm:1.0.0"}}
}

func cacheVolume(pod *corev1.Pod) {
	pod.Spec.Volumes = []corev1.Volume{{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "cache", MountPath: "/cache"}}
}

// A pod that asks for a lease gets the sidecar ahead of its init containers, with the
// secret, and is otherwise as its author wrote it.
func TestInjection(t *testing.T) {
	t.Parallel()
	for from, objects := range injections(t) {
		in := mustCompile(t, objects)
		for name, more := range map[string]func(*corev1.Pod){
			"bare":                 nil,
			"with init containers": migrations,
			"with volumes":         cacheVolume,
			"with both":            func(pod *corev1.Pod) { migrations(pod); cacheVolume(pod) },
			"with empty lists": func(pod *corev1.Pod) {
				pod.Spec.InitContainers, pod.Spec.Volumes = []corev1.Container{}, []corev1.Volume{}
			},
			"with the secret there": func(pod *corev1.Pod) { cacheVolume(pod); pod.Spec.Volumes[0] = issuerVolume },
		} {
			t.Run(from+" "+name, func(t *testing.T) {
				t.Parallel()
				injects(t, in, application(more))
			})
		}
	}
}

// injects applies the policy to a pod, and to the pod that it makes of it.
func injects(t *testing.T, in *injector, before *corev1.Pod) {
	t.Helper()
	after, selected, matched := in.admit(t, before)
	if !selected || !matched || len(after.Spec.InitContainers) == 0 {
		t.Fatalf("selected: %v, matched: %v, init containers: %d", selected, matched, len(after.Spec.InitContainers))
	}
	sidecar := after.Spec.InitContainers[0]
	injectedMisses(after).report(t, "the pod")
	if lease := value(sidecar, "WIREFENCE_LEASE"); lease != "reports.eu-1" {
		t.Errorf("it holds the lease of %q", lease)
	}
	rest := after.DeepCopy()
	rest.Spec.InitContainers = rest.Spec.InitContainers[1:]
	if !slices.ContainsFunc(before.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == issuerVolume.Name }) {
		rest.Spec.Volumes = rest.Spec.Volumes[:len(rest.Spec.Volumes)-1]
	}
	if !equality.Semantic.DeepEqual(before.Spec, rest.Spec) || !equality.Semantic.DeepEqual(before.ObjectMeta, rest.ObjectMeta) {
		t.Errorf("something else was changed:\n%s", asYAML(t, rest))
	}
	again, _, matched := in.admit(t, after)
	if matched || !equality.Semantic.DeepEqual(after, again) {
		t.Error("a second time changes it again")
	}
}

// Pods that ask for no lease, or have the container, stay as they are.
func TestInjectionLeavesAlone(t *testing.T) {
	t.Parallel()
	for from, objects := range injections(t) {
		in := mustCompile(t, objects)
		for name, c := range map[string]struct {
			more     func(*corev1.Pod)
			selected bool
		}{
			"no labels":          {func(pod *corev1.Pod) { pod.Labels = nil }, false},
			"another label":      {func(pod *corev1.Pod) { pod.Labels = map[string]string{"wirefence.client": "true"} }, false},
			"an empty lease":     {func(pod *corev1.Pod) { pod.Labels["wirefence.io/lease"] = "" }, true},
			"its own sidecar":    {func(pod *corev1.Pod) { migrations(pod); pod.Spec.InitContainers[1].Name = "wirefence" }, true},
			"a container of its": {func(pod *corev1.Pod) { pod.Spec.Containers[0].Name = "wirefence" }, true},
		} {
			before := application(c.more)
			after, selected, matched := in.admit(t, before)
			if selected != c.selected || matched || !equality.Semantic.DeepEqual(before, after) {
				t.Errorf("%s, %s: selected: %v, matched: %v, and it is\n%s", from, name, selected, matched, asYAML(t, after))
			}
		}
	}
}

func TestInjectionPolicy(t *testing.T) {
	t.Parallel()
	for from, objects := range injections(t) {
		policy, binding := one[admissionv1.MutatingAdmissionPolicy](objects), one[admissionv1.MutatingAdmissionPolicyBinding](objects)
		if binding.Spec.PolicyName != policy.Name {
			t.Errorf("%s: the binding is of %s", from, binding.Spec.PolicyName)
		}
		if policy.Spec.FailurePolicy == nil || *policy.Spec.FailurePolicy != admissionv1.Fail {
			t.Errorf("%s: a pod may start without the sidecar that it asked for", from)
		}
		rule := policy.Spec.MatchConstraints.ResourceRules[0].RuleWithOperations
		if !slices.Equal(rule.Resources, []string{"pods"}) || !slices.Equal(rule.Operations, []admissionv1.OperationType{admissionv1.Create}) {
			t.Errorf("%s: it is for %+v", from, rule)
		}
	}
}

var issuerVolume = corev1.Volume{Name: "wirefence-issuer", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "wirefence-issuer"}}}

// injectionMisses are the faults of the pod that a policy makes of an application's.
func injectionMisses(objects []any) misses {
	in, err := newInjector(one[admissionv1.MutatingAdmissionPolicy](objects))
	if err != nil {
		return misses{err.Error()}
	}
	pod, _, matched, err := in.apply(application(nil))
	if err != nil || !matched {
		return misses{fmt.Sprintf("matched: %v, %v", matched, err)}
	}
	return injectedMisses(pod)
}

// injectedMisses checks the first init container of a pod. The upstream comes from the
// ConfigMap.
func injectedMisses(pod *corev1.Pod) (m misses) {
	sidecar := *pod.Spec.InitContainers[0].DeepCopy()
	m.add("", containerMisses(sidecar))
	m.want(len(sidecar.EnvFrom) == 1 && sidecar.EnvFrom[0].ConfigMapRef != nil && sidecar.EnvFrom[0].ConfigMapRef.Name == "wirefence-sidecar", "its settings are not from the ConfigMap")
	for _, mount := range sidecar.VolumeMounts {
		m.want(slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Name == mount.Name && v.Secret != nil && v.Secret.SecretName == mount.Name
		}), "the pod has no volume %s", mount.Name)
		file := value(sidecar, "WIREFENCE_DATABASE_URL_FILE")
		m.want(strings.HasPrefix(file, mount.MountPath+"/"), "WIREFENCE_DATABASE_URL_FILE is %s", file)
	}
	sidecar.Env = append(sidecar.Env, corev1.EnvVar{Name: "WIREFENCE_UPSTREAM"})
	m.add("", sidecarContainerMisses(sidecar))
	return m
}
