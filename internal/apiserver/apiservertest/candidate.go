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
	seen   any       // the version of the Lease that Try has seen last
	since  time.Time // when it has seen it first
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
	code, l := c.do(http.MethodGet, "/"+c.lease, nil)
	if got, answer := c.record(code, l); got != http.StatusOK && got != http.StatusCreated {
		t.Fatalf("to lead: status %d, %v", got, answer)
	}
}

// Try acquires the Lease if nobody has it, or its holder hasn't renewed it for as long as it lasts, or
// renews it. It reports whether the candidate leads.
func (c *Candidate) Try() bool {
	code, l := c.do(http.MethodGet, "/"+c.lease, nil)
	if version := of(l)["resourceVersion"]; version != c.seen {
		c.seen, c.since = version, time.Now()
	}
	spec, _ := l["spec"].(map[string]any)
	lasts, _ := spec["leaseDurationSeconds"].(float64)
	if holder := spec["holderIdentity"]; code == http.StatusOK && holder != "" && holder != c.Identity && time.Since(c.since) < time.Duration(lasts)*time.Second {
		return false
	}
	code, _ = c.record(code, l)
	return code == http.StatusOK || code == http.StatusCreated
}

// record writes the candidate's record into the Lease that was read.
func (c *Candidate) record(code int, l object) (int, object) {
	now := time.Now().Add(c.Ahead).UTC().Format("2006-01-02T15:04:05.000000Z")
	spec := object{"holderIdentity": c.Identity, "leaseDurationSeconds": int(c.Duration / time.Second), "acquireTime": now, "renewTime": now, "leaseTransitions": 0}
	if code == http.StatusNotFound {
		return c.do(http.MethodPost, "", object{"kind": "Lease", "apiVersion": group, "metadata": object{"name": c.lease}, "spec": spec})
	}
	old, _ := l["spec"].(map[string]any)
	transitions, _ := old["leaseTransitions"].(float64)
	if spec["leaseTransitions"] = transitions; old["holderIdentity"] == c.Identity {
		spec["acquireTime"] = old["acquireTime"]
	} else {
		spec["leaseTransitions"] = transitions + 1
	}
	l["spec"] = spec
	return c.do(http.MethodPut, "/"+c.lease, l)
}

// Release gives the Lease up, as with ReleaseOnCancel.
func (c *Candidate) Release(t testing.TB) {
	t.Helper()
	_, l := c.do(http.MethodGet, "/"+c.lease, nil)
	old, _ := l["spec"].(map[string]any)
	old["holderIdentity"], old["leaseDurationSeconds"] = "", 1
	c.want(t, http.StatusOK, http.MethodPut, "/"+c.lease, l)
}

// TryRelease gives the Lease up if the candidate leads, and nobody changes it meanwhile.
func (c *Candidate) TryRelease() {
	_, l := c.do(http.MethodGet, "/"+c.lease, nil)
	if spec, _ := l["spec"].(map[string]any); spec["holderIdentity"] == c.Identity {
		spec["holderIdentity"], spec["leaseDurationSeconds"] = "", 1
		c.do(http.MethodPut, "/"+c.lease, l)
	}
}

// Delete deletes the Lease, if there is one.
func (c *Candidate) Delete(t testing.TB) {
	t.Helper()
	if got, answer := c.do(http.MethodDelete, "/"+c.lease, nil); got != http.StatusOK && got != http.StatusNotFound {
		t.Fatalf("to delete the Lease: status %d, %v", got, answer)
	}
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
