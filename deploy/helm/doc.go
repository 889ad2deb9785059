// Package helm holds the chart in wirefence. Its rules and dashboards are those of
// deploy/mixin, by symbolic links that Helm follows. generate writes the names of settings
// that docs/reference/settings.md lists into the schema of its values. deploy/test renders the chart,
// and makes the manifest of the policy from it.
package helm

//go:generate go run ./generate
//go:generate go -C ../test run ./generate
