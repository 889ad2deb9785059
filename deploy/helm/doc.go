// Package helm holds the chart in wirefence. What the chart has from elsewhere, generate
// writes: the rules and the dashboards of deploy/mixin, and the names of settings that
// docs/operations.md lists. deploy/test renders the chart.
package helm

//go:generate go run ./generate
