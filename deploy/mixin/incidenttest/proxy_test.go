//go:build linux

package incidenttest

import (
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// wirefence is a `wirefence proxy`.
type wirefence struct {
	*servers.Wirefence
	name string
	url  string // for clients, as the role app
}

// newProxy starts a proxy with settings, NAME=value. It is ended with the test.
func newProxy(t *testing.T, name string, settings ...string) *wirefence {
	t.Helper()
	p, err := servers.StartWirefence(t.Context(), binary, append(settings, "WIREFENCE_HOLDER="+name, "WIREFENCE_TTL=3s", "WIREFENCE_LOG_FORMAT=json")...)
	must(t, err)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%s:\n%s", name, p.Log())
		}
		p.Close()
	})
	return &wirefence{p, name, "postgres://app@" + p.Addr() + "/postgres?sslmode=disable"}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// awaitLead waits until the sidecar holds its lease.
func (p *wirefence) awaitLead(t *testing.T) {
	t.Helper()
	stack.Eventually(t, p.name+" leads", func() bool { return p.Answers(t.Context(), "/readyz?role=leader") })
}
