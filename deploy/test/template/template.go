// Package template renders a chart as `helm template` does.
package template

import (
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

// Files returns the files that a chart makes for a version of Kubernetes, by the names of
// their templates: the values go through the schema, and all templates through Helm's own
// engine.
func Files(c *chart.Chart, values chartutil.Values, kubernetes string) (map[string]string, error) {
	version, err := chartutil.ParseKubeVersion(kubernetes)
	if err != nil {
		return nil, err
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *version
	if err := chartutil.ProcessDependenciesWithMerge(c, values); err != nil {
		return nil, err
	}
	release := chartutil.ReleaseOptions{Name: "orders", Namespace: "shop", IsInstall: true, Revision: 1}
	merged, err := chartutil.ToRenderValues(c, values, release, capabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(c, merged)
}
