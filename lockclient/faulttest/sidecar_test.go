//go:build linux

package faulttest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// sidecar is a `wirefence proxy` that competes for the lease of the resource.
type sidecar struct {
	*servers.Wirefence
	name string
}

// startSidecar starts a sidecar with settings, NAME=value. It is ended with the test.
func startSidecar(t *testing.T, name string, settings ...string) *sidecar {
	t.Helper()
	proxy := stack.Started(servers.StartWirefence(t.Context(), suite.Program(t, "../.."), append(settings, "WIREFENCE_ADMIN_LISTEN=off",
		"WIREFENCE_LEASE="+string(resource), "WIREFENCE_HOLDER="+name, "WIREFENCE_LOG_FORMAT=json")...)).EndWith(t)
	return &sidecar{proxy, name}
}

// grants returns the tokens that the sidecar reports as granted, in order.
func (s *sidecar) grants() (all []fence.Token) {
	for line := range strings.Lines(s.Log()) {
		var entry struct {
			Message string `json:"msg"`
			Token   fence.Token
		}
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Message == "holding the lease" {
			all = append(all, entry.Token)
		}
	}
	return all
}
