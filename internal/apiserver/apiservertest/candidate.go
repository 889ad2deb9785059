package apiservertest

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"
)

// Candidate takes part in an election on a Lease of the namespace shop as client-go does, which
// writes these records and compares no clock of another with its own.
type Candidate struct {
	Identity string
	Duration time.Duration // default 15s
	Ahead    time.Duration // of its clock, against that of this machine

	server *Server
	lease  string
}

// Candidate returns a candidate in the election of a Lease.
func (s *Server) Candidate(lease, identity string) *Candidate {
	return &Candidate{Identity: identity, Duration: 15 * time.Second, server: s, lease: lease}
}

// do sends a request for the Lease, and returns its answer's status.
func (c *Candidate) do(method, path string, body any) (code int, answer object) {
	c.server.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		c.server.t.Fatal(err)
	}
	request, err := http.NewRequest(method, c.server.URL+prefix+"shop/leases"+path, bytes.NewReader(text))
	if err != nil {
		c.server.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+bearer)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	got, err := client.Do(request)
	if err != nil {
		c.server.t.Fatal(err)
	}
	defer got.Body.Close()
	_ = json.NewDecoder(got.Body).Decode(&answer)
	return got.StatusCode, answer
}

// Lead acquires the Lease, whoever has it, or renews it: a candidate that isn't its holder counts a
// transition.
func (c *Candidate) Lead(t testing.TB) {
	t.Helper()
	now := time.Now().Add(c.Ahead).UTC().Format("2006-01-02T15:04:05.000000Z")
	spec := object{"holderIdentity": c.Identity, "leaseDurationSeconds": int(c.Duration / time.Second), "acquireTime": now, "renewTime": now, "leaseTransitions": 0}
	code, l := c.do(http.MethodGet, "/"+c.lease, nil)
	if code == http.StatusNotFound {
		c.want(t, http.StatusCreated, http.MethodPost, "", object{"kind": "Lease", "apiVersion": group, "metadata": object{"name": c.lease}, "spec": spec})
		return
	}
	old, _ := l["spec"].(map[string]any)
	transitions, _ := old["leaseTransitions"].(float64)
	if spec["leaseTransitions"] = transitions; old["holderIdentity"] == c.Identity {
		spec["acquireTime"] = old["acquireTime"]
	} else {
		spec["leaseTransitions"] = transitions + 1
	}
	l["spec"] = spec
	c.want(t, http.StatusOK, http.MethodPut, "/"+c.lease, l)
}

// Release gives the Lease up, as with ReleaseOnCancel.
func (c *Candidate) Release(t testing.TB) {
	t.Helper()
	_, l := c.do(http.MethodGet, "/"+c.lease, nil)
	old, _ := l["spec"].(map[string]any)
	old["holderIdentity"], old["leaseDurationSeconds"] = "", 1
	c.want(t, http.StatusOK, http.MethodPut, "/"+c.lease, l)
}

// Delete deletes the Lease.
func (c *Candidate) Delete(t testing.TB) {
	t.Helper()
	c.want(t, http.StatusOK, http.MethodDelete, "/"+c.lease, nil)
}

// Token is that of the Lease as it is now.
func (c *Candidate) Token(t testing.TB) int64 {
	t.Helper()
	_, l := c.do(http.MethodGet, "/"+c.lease, nil)
	spec, _ := l["spec"].(map[string]any)
	created, err := time.Parse(time.RFC3339, fmt.Sprint(of(l)["creationTimestamp"]))
	transitions, ok := spec["leaseTransitions"].(float64)
	if err != nil || !ok {
		t.Fatalf("%v: %v", l, err)
	}
	return created.Unix()<<20 + int64(transitions) + 1
}

func (c *Candidate) want(t testing.TB, code int, method, path string, body any) {
	t.Helper()
	if got, answer := c.do(method, path, body); got != code {
		t.Fatalf("%s of the Lease: status %d, %v", method, got, answer)
	}
}
