// Package podtest runs what docs/howto/kubernetes.md names on a cluster: the manifests, the chart and
// the sidecars, with network policies that are enforced. scripts/engine --cluster runs its tests.
package podtest
