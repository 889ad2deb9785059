package deploy

import (
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const wirefenceImage = "wirefence/wirefence:"

// one returns the only object of a type, or a zero one.
func one[T any](objects []any) *T {
	for _, object := range objects {
		if typed, ok := object.(*T); ok {
			return typed
		}
	}
	return new(T)
}

// ofObjects finds the faults of a manifest's text.
func ofObjects(check func(objects []any) misses) func(text string) misses {
	return func(text string) misses {
		objects, err := decode(text)
		if err != nil || len(objects) == 0 {
			return misses{fmt.Sprintf("%d objects: %v", len(objects), err)}
		}
		return check(objects)
	}
}

func sidecarMisses(objects []any) (m misses) {
	pod := deployed(objects).Spec.Template.Spec
	m.add("", podMisses(pod))
	if len(pod.InitContainers) != 1 || len(pod.Containers) != 1 {
		return append(m, "it is not one sidecar and one application")
	}
	m.add("", sidecarContainerMisses(pod.InitContainers[0]))
	m.add("", mountMisses(pod, map[string][]string{"wirefence-issuer": {"database-url"}}))
	m.want(strings.Contains(value(pod.Containers[0], "DATABASE_URL"), "@"+value(pod.InitContainers[0], "WIREFENCE_LISTEN")+"/"), "the application doesn't connect to the sidecar")
	return m
}

// sidecarContainerMisses checks a sidecar, of whatever pod.
func sidecarContainerMisses(sidecar corev1.Container) (m misses) {
	m.add("", proxyMisses(sidecar))
	m.want(sidecar.RestartPolicy != nil && *sidecar.RestartPolicy == corev1.ContainerRestartPolicyAlways, "it is no native sidecar")
	m.want(strings.HasPrefix(value(sidecar, "WIREFENCE_LISTEN"), "127.0.0.1:"), "the sidecar listens beyond its pod")
	return m
}

func standaloneMisses(objects []any) (m misses) {
	deployment := deployed(objects)
	pod := deployment.Spec.Template.Spec
	m.add("", podMisses(pod))
	if len(pod.Containers) != 1 {
		return append(m, "it is not one container")
	}
	proxy := pod.Containers[0]
	m.add("", proxyMisses(proxy))
	replicas, grace := deployment.Spec.Replicas, pod.TerminationGracePeriodSeconds
	m.want(replicas != nil && *replicas >= 2, "fewer than two replicas")
	m.want(grace != nil && *grace >= 30, "there is no time to drain")
	template := labels.Set(deployment.Spec.Template.Labels)
	service := one[corev1.Service](objects)
	m.want(len(service.Spec.Selector) > 0 && labels.SelectorFromSet(service.Spec.Selector).Matches(template), "the service selects other pods")
	m.want(slices.ContainsFunc(proxy.Ports, func(p corev1.ContainerPort) bool {
		return p.Name == "api" && value(proxy, "WIREFENCE_API_LISTEN") == fmt.Sprint("0.0.0.0:", p.ContainerPort)
	}), "the API's port is none of the container's")
	m.want(slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.TargetPort.String() == "api" }), "the service offers no API")
	port := deployment.Spec.Template.Annotations["prometheus.io/port"]
	m.want(port == "9433", "Prometheus scrapes port %s", port)
	for _, port := range service.Spec.Ports {
		m.want(slices.ContainsFunc(proxy.Ports, func(p corev1.ContainerPort) bool { return p.Name == port.TargetPort.String() }), "the service's port is none of the proxy's")
		m.want(port.TargetPort.String() != "admin", "the service offers the admin port")
	}
	budget := one[policyv1.PodDisruptionBudget](objects)
	least := budget.Spec.MinAvailable
	m.want(least != nil && least.IntValue() >= 1, "all pods may go at once")
	m.want(least == nil || replicas == nil || least.IntValue() < int(*replicas), "a node can't be drained")
	m.want(selects(budget.Spec.Selector, template) && selects(deployment.Spec.Selector, template), "a selector doesn't match the pods")
	return m
}

func migrateMisses(objects []any) (m misses) {
	pod := one[batchv1.Job](objects).Spec.Template.Spec
	m.add("", podMisses(pod))
	// A pod that is new may not reach the server for a second.
	m.want(pod.RestartPolicy == corev1.RestartPolicyOnFailure, "the job doesn't restart its container")
	if len(pod.Containers) != 1 {
		return append(m, "it is not one container")
	}
	m.add("", runs(pod.Containers[0], "migrate", "--wait=60s"))
	m.add("", settingsMisses("migrate", environment(pod.Containers[0])))
	return m
}

// plainMigrateMisses checks the job of the plain manifests.
func plainMigrateMisses(objects []any) (m misses) {
	job := one[batchv1.Job](objects).Spec
	m.add("", migrateMisses(objects))
	m.add("", mountMisses(job.Template.Spec, map[string][]string{"wirefence-owner": {"database-url"}}))
	m.want(job.TTLSecondsAfterFinished != nil && *job.TTLSecondsAfterFinished <= 3600, "the job stays for ever, and can't be applied again")
	return m
}

// plainStandaloneMisses checks the proxy of the plain manifests.
func plainStandaloneMisses(objects []any) (m misses) {
	m.add("", standaloneMisses(objects))
	m.add("", mountMisses(deployed(objects).Spec.Template.Spec, map[string][]string{"wirefence-issuer": {"database-url"}, "wirefence-tokens": {"tokens"}}))
	return m
}

// policyMisses holds the database's policy to: the proxy and the migration, on
// 5432, and nobody else.
func policyMisses(objects []any) (m misses) {
	policy, ok := objects[0].(*networkingv1.NetworkPolicy)
	if !ok || policy.Spec.PodSelector.MatchLabels["app.kubernetes.io/name"] != "postgres" {
		return misses{"the first object is not the database's policy"}
	}
	m.want(slices.Equal(policy.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}), "it isn't of ingress")
	admitted := map[string]bool{"proxy": false, "migrate": false}
	for _, rule := range policy.Spec.Ingress {
		m.want(len(rule.From) > 0, "it admits others: everybody")
		for _, peer := range rule.From {
			component := ""
			if peer.PodSelector != nil && peer.NamespaceSelector == nil && peer.IPBlock == nil &&
				peer.PodSelector.MatchLabels["app.kubernetes.io/name"] == "wirefence" {
				component = peer.PodSelector.MatchLabels["app.kubernetes.io/component"]
			}
			_, expected := admitted[component]
			m.want(expected, "it admits others: %v", peer)
			admitted[component] = true
		}
		m.want(len(rule.Ports) == 1 && rule.Ports[0].Port != nil && rule.Ports[0].Port.IntValue() == 5432, "it is not for port 5432 alone")
	}
	for component, in := range admitted {
		m.want(in, "it doesn't admit the %s", component)
	}
	if len(objects) != 2 {
		return append(m, "there is no policy for clients")
	}
	m.add("", clientPolicyMisses(objects[1].(*networkingv1.NetworkPolicy)))
	return m
}
