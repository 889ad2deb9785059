// Package apiservertest serves Leases to tests as the API server of Kubernetes does: with versions,
// conflicts, lists, watches and their ends. The real API server was not at hand; client-go elects on
// this one in deploy/test.
package apiservertest

import (
	"crypto/tls"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/authority"
)

const (
	group  = "coordination.k8s.io/v1"
	prefix = "/apis/" + group + "/namespaces/"
	bearer = "of-a-service-account"
)

// Server has Leases of any namespace. It is safe for concurrent use.
type Server struct {
	URL, CAFile, TokenFile string

	t         testing.TB
	mu        sync.Mutex
	version   int
	leases    map[string]object // by namespace/name
	clusters  map[string]object // of CloudNativePG, by path
	log       []event
	compacted int // versions up to here are forgotten
	forbidden bool
	held      bool
	changed   chan struct{} // closed with each change of the above
	cut       chan struct{} // closed to end all watches
}

// object is a Lease as its JSON has it.
type object map[string]any

type event struct {
	kind, name string // ADDED, MODIFIED or DELETED, of a lease
	version    int
	object     object
}

// Start starts a server, which ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	trusted := authority.New(t)
	s := &Server{t: t, CAFile: trusted.CAFile, TokenFile: filepath.Join(t.TempDir(), "token"), version: 100,
		leases: map[string]object{}, clusters: map[string]object{}, changed: make(chan struct{}), cut: make(chan struct{})}
	s.WriteToken(bearer)
	server := httptest.NewUnstartedServer(s)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{trusted.Issue(t, "kubernetes", "127.0.0.1").Load(t)}}
	server.StartTLS()
	s.URL = server.URL
	t.Cleanup(func() {
		s.Cut()
		server.CloseClientConnections()
		server.Close()
	})
	return s
}

// WriteToken replaces what the token's file has. The server accepts the first one alone.
func (s *Server) WriteToken(text string) {
	s.t.Helper()
	if err := os.WriteFile(s.TokenFile, []byte(text+"\n"), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// Setting is the server as a setting names it.
func (s *Server) Setting() string { return s.URL + "?ca=" + s.CAFile + "&token=" + s.TokenFile }

// change does something to the server, and wakes the watches.
func (s *Server) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
	close(s.changed)
	s.changed = make(chan struct{})
}

// Cut ends all watches.
func (s *Server) Cut() { s.change(func() { close(s.cut); s.cut = make(chan struct{}) }) }

// Forbid refuses all requests for want of rights, or no longer does.
func (s *Server) Forbid(forbid bool) { s.change(func() { s.forbidden = forbid }) }

// Hold lets watches bring nothing, as on a dead connection, or lets them go on.
func (s *Server) Hold(hold bool) { s.change(func() { s.held = hold }) }

// Compact forgets all changes until now.
func (s *Server) Compact() { s.change(func() { s.compacted = s.version }) }

// ServeHTTP serves a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	place, ok := strings.CutPrefix(r.URL.Path, prefix)
	namespace, name, _ := strings.Cut(place, "/leases")
	name = strings.TrimPrefix(name, "/")
	s.mu.Lock()
	forbidden, cluster := s.forbidden, s.clusters[r.URL.Path]
	s.mu.Unlock()
	switch {
	case r.Header.Get("Authorization") != "Bearer "+bearer:
		fail(w, http.StatusUnauthorized, "Unauthorized")
	case forbidden:
		fail(w, http.StatusForbidden, "Forbidden")
	case r.Method == http.MethodGet && cluster != nil:
		write(w, http.StatusOK, cluster)
	case !ok || namespace == "":
		fail(w, http.StatusNotFound, "NotFound")
	case r.Method == http.MethodGet && name == "" && r.URL.Query().Get("watch") == "true":
		s.watch(w, r, namespace)
	case r.Method == http.MethodGet && name == "":
		s.list(w, r, namespace)
	case r.Method == http.MethodGet:
		s.mu.Lock()
		defer s.mu.Unlock()
		if l, found := s.leases[namespace+"/"+name]; found {
			write(w, http.StatusOK, l)
		} else {
			fail(w, http.StatusNotFound, "NotFound")
		}
	default:
		s.write(w, r, namespace, name)
	}
}

func write(w http.ResponseWriter, code int, o object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o)
}

func status(code int, reason string) object {
	return object{"kind": "Status", "apiVersion": "v1", "metadata": object{}, "status": "Failure", "reason": reason, "code": code}
}

func fail(w http.ResponseWriter, code int, reason string) { write(w, code, status(code, reason)) }

// selected is the only name that a request selects, in a namespace.
func selected(r *http.Request, namespace string) string {
	return namespace + "/" + strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []object{}
	if l, found := s.leases[selected(r, namespace)]; found {
		item := maps.Clone(l)
		delete(item, "kind") // as in lists of the real one
		delete(item, "apiVersion")
		items = append(items, item)
	}
	write(w, http.StatusOK, object{"kind": "LeaseList", "apiVersion": group, "metadata": object{"resourceVersion": strconv.Itoa(s.version)}, "items": items})
}

// watch streams what happens to a Lease behind a version.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, namespace string) {
	at, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if err != nil {
		fail(w, http.StatusBadRequest, "BadRequest")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	send := func(kind string, o object) {
		_ = json.NewEncoder(w).Encode(object{"type": kind, "object": o})
	}
	s.mu.Lock()
	cut, forgotten := s.cut, at < s.compacted
	s.mu.Unlock()
	if forgotten {
		send("ERROR", status(http.StatusGone, "Expired"))
		return
	}
	for {
		s.mu.Lock()
		changed := s.changed
		if !s.held {
			for _, e := range s.log {
				if e.version > at && e.name == selected(r, namespace) {
					send(e.kind, e.object)
				}
			}
			at = s.version
		}
		s.mu.Unlock()
		_ = http.NewResponseController(w).Flush()
		select {
		case <-changed:
		case <-cut:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// write creates, updates or deletes a Lease.
func (s *Server) write(w http.ResponseWriter, r *http.Request, namespace, name string) {
	var given object
	if r.Method != http.MethodDelete {
		if err := json.NewDecoder(r.Body).Decode(&given); err != nil {
			fail(w, http.StatusBadRequest, "BadRequest")
			return
		}
		name, _ = of(given)["name"].(string)
	}
	code, reason := http.StatusOK, ""
	var answer object
	s.change(func() {
		old, found := s.leases[namespace+"/"+name]
		version := of(given)["resourceVersion"]
		switch {
		case r.Method == http.MethodPost && found:
			code, reason = http.StatusConflict, "AlreadyExists"
		case r.Method == http.MethodPost:
			code, answer = http.StatusCreated, s.put("ADDED", namespace, name, object{"uid": strconv.Itoa(s.version), "creationTimestamp": time.Now().UTC().Format(time.RFC3339)}, given)
		case !found:
			code, reason = http.StatusNotFound, "NotFound"
		case r.Method == http.MethodPut && version != nil && version != "" && version != of(old)["resourceVersion"]:
			code, reason = http.StatusConflict, "Conflict"
		case r.Method == http.MethodPut:
			answer = s.put("MODIFIED", namespace, name, of(old), given)
		case r.Method == http.MethodDelete:
			answer = s.put("DELETED", namespace, name, of(old), old)
			delete(s.leases, namespace+"/"+name)
		default:
			code, reason = http.StatusMethodNotAllowed, "MethodNotAllowed"
		}
	})
	if reason != "" {
		fail(w, code, reason)
		return
	}
	write(w, code, answer)
}

// of returns the metadata of a Lease.
func of(l object) object {
	metadata, _ := l["metadata"].(map[string]any)
	if metadata == nil {
		metadata, _ = l["metadata"].(object)
	}
	return metadata
}

// put records a change of a Lease, with the metadata that the server keeps. The caller holds mu.
func (s *Server) put(kind, namespace, name string, kept, given object) object {
	s.version++
	metadata := object{"name": name, "namespace": namespace, "uid": kept["uid"], "creationTimestamp": kept["creationTimestamp"], "resourceVersion": strconv.Itoa(s.version)}
	l := object{"kind": "Lease", "apiVersion": group, "metadata": metadata, "spec": given["spec"]}
	s.leases[namespace+"/"+name] = l
	s.log = append(s.log, event{kind, namespace + "/" + name, s.version, l})
	return l
}
