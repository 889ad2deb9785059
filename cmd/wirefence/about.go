package main

import (
	"context"
	"fmt"
	"net/url"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/wirefence/wirefence/internal/api"
	"github.com/wirefence/wirefence/internal/connstring"
	"github.com/wirefence/wirefence/internal/doctor"
	"github.com/wirefence/wirefence/migrations"
	"github.com/wirefence/wirefence/proxy"
)

// about describes this process.
func (cfg proxySettings) about(server *proxy.Server, adopted *adopted, began time.Time) api.About {
	a := api.About{
		Version: thisBuild().Version, Schema: migrations.Version(), StartedAt: began, Process: cfg.processName(), Mode: string(cfg.Mode), UnfencedWrites: string(cfg.UnfencedWrites),
		Settings: cfg.withoutSecrets(),
	}
	if cfg.LeaseOf != "" {
		a.Lease = &api.OwnLease{Resource: cfg.LeaseOf, Held: server.Leading()}
	}
	for _, l := range adopted.leases() {
		a.Adopted = append(a.Adopted, api.AdoptedLease(l))
	}
	for _, h := range server.Hosts() {
		role := "unknown"
		switch {
		case h.Primary:
			role = "primary"
		case h.Known:
			role = "standby"
		}
		host := api.UpstreamHost{Host: h.Host, Role: role, Timeline: h.Timeline, Behind: h.Behind}
		if h.Err != nil {
			host.Error = h.Err.Error()
		}
		a.Upstream = append(a.Upstream, host)
	}
	return a
}

// withoutSecrets returns the settings by the names of their variables. Connection strings
// lack their passwords.
func (cfg proxySettings) withoutSecrets() map[string]string {
	all := map[string]string{}
	value := reflect.ValueOf(cfg)
	for _, f := range fields[proxySettings]() {
		if variable(f) == "" {
			continue // the argument of one invocation
		}
		name, field := f.Tag.Get("env"), value.FieldByIndex(f.Index).Interface()
		text := fmt.Sprint(field)
		switch list := field.(type) {
		case []string:
			text = strings.Join(list, ",")
		case connectionStrings:
			text = ""
			for _, each := range list {
				text = strings.TrimSpace(text + " " + withoutPassword(each))
			}
		default:
			if f.Tag.Get("type") == "command" && text != "" {
				text = "(set)" // it may have a password in it
			} else if mayBeFile(f) {
				text = withoutPassword(text)
			}
		}
		all[name] = text
	}
	return all
}

var secretParameter = regexp.MustCompile(`(?i)pass|secret|token`)

// withoutPassword removes the password from a connection string. One that can't be parsed
// may have it anywhere, and becomes "(set)".
func withoutPassword(text string) string {
	if text, _ = connstring.Cut(text); text == "" {
		return ""
	}
	scheme, rest, found := strings.Cut(text, "://")
	if !found {
		return "(set)"
	}
	authority, tail := rest, ""
	if at := strings.IndexAny(rest, "/?#"); at >= 0 {
		authority, tail = rest[:at], rest[at:]
	}
	if user, hosts, found := cutLast(authority, "@"); found {
		user, _, _ = strings.Cut(user, ":")
		authority = user + "@" + hosts
	}
	path, query, _ := strings.Cut(tail, "?")
	parameters, err := url.ParseQuery(query)
	if err != nil || strings.ContainsAny(tail, "@#") { // a part of the password may stand there
		return "(set)"
	}
	for name := range parameters {
		if secretParameter.MatchString(name) {
			parameters.Del(name)
		}
	}
	text = scheme + "://" + authority + path
	if len(parameters) > 0 {
		text += "?" + parameters.Encode()
	}
	return text
}

// cutLast is strings.Cut at the last separator.
func cutLast(text, separator string) (before, after string, found bool) {
	at := strings.LastIndex(text, separator)
	if at < 0 {
		return "", text, false
	}
	return text[:at], text[at+len(separator):], true
}

// examine examines what the proxy's settings name, as `wirefence doctor` does.
func (cfg proxySettings) examine(ctx context.Context) ([]doctor.Result, error) {
	settings := doctorSettings{
		StoreSettings: cfg.StoreSettings, SealSettings: cfg.SealSettings, ResourceSettings: ResourceSettings{IssuerSettings: IssuerSettings{DatabaseURL: cfg.DatabaseURL}}, Upstream: cfg.Upstream, Witness: cfg.WitnessURL, Listen: cfg.Listen,
		AdminListen: cfg.AdminListen, MaxConnections: cfg.MaxConnections, Lease: cfg.LeaseOf, LeaseFrom: cfg.LeaseFrom, Kubernetes: cfg.Kubernetes, TTL: cfg.TTL, Timeout: 10 * time.Second,
	}
	in, closeAll, err := settings.input(ctx)
	if err != nil {
		return nil, err
	}
	defer closeAll()
	return doctor.Run(ctx, in, settings.Timeout), nil
}
