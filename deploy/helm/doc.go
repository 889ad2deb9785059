// Package helm holds the chart in wirefence. What the chart has from elsewhere, generate
// writes: the rules and the dashboards of deploy/mixin, and the names of settings that
// docs/operations.md lists. deploy/test renders the chart, and makes the manifest of the
// policy from it.
package helm

//go:generate go run ./generate
//go:generate go -C ../test run ./generate
