// Package mixin tests the rules for Prometheus and the dashboards for Grafana that are
// shipped beside it: that promtool accepts them, that each alert has its section in
// docs/reference/alerts.md, and that dashboards are what generate makes. incidenttest plays
// incidents with them.
package mixin

//go:generate go run ./generate
