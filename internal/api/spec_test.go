package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
)

// specification is openapi.yaml, with which requests and answers are compared.
type specification struct {
	doc    *openapi3.T
	router routers.Router

	mu   sync.Mutex
	seen map[string]bool // operations with a status that was answered
}

func readSpecification() (*specification, error) {
	openapi3filter.RegisterBodyDecoder("text/event-stream", func(body io.Reader, _ http.Header, _ *openapi3.SchemaRef, _ openapi3filter.EncodingFn) (any, error) {
		text, err := io.ReadAll(body)
		return string(text), err
	})
	doc, err := openapi3.NewLoader().LoadFromData(openAPI)
	if err != nil {
		return nil, err
	}
	if err := doc.Validate(context.Background()); err != nil {
		return nil, err
	}
	doc.Servers = nil // the tests have servers of their own
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		return nil, err
	}
	return &specification{doc: doc, router: router, seen: map[string]bool{}}, nil
}

// operations calls do for each operation of the file, with its statuses.
func (s *specification) operations(do func(path, method string, operation *openapi3.Operation)) {
	for path, item := range s.doc.Paths.Map() {
		for method, operation := range item.Operations() {
			do(path, method, operation)
		}
	}
}

// unseen returns the documented answers that no test got.
func (s *specification) unseen() (missing []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.operations(func(_, _ string, operation *openapi3.Operation) {
		for status := range operation.Responses.Map() {
			if key := operation.OperationID + " " + status; !s.seen[key] {
				missing = append(missing, key)
			}
		}
	})
	return missing
}

// hold fails the test unless the file describes the answer. A request that the server accepts
// must be valid by the file; one that it refuses must not be, unless a file can't express the
// rule.
func (s *specification) hold(t testing.TB, r *http.Request, body string, answer *http.Response, text []byte, beyond bool) {
	t.Helper()
	route, parameters, err := s.router.FindRoute(r)
	if err != nil {
		if answer.StatusCode != http.StatusNotFound && answer.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s %s is not in the file: %v", r.Method, r.URL.EscapedPath(), err)
		}
		return
	}
	s.mu.Lock()
	s.seen[fmt.Sprintf("%s %d", route.Operation.OperationID, answer.StatusCode)] = true
	s.mu.Unlock()
	if r.Body != nil {
		r.Body = io.NopCloser(strings.NewReader(body))
	}
	request := &openapi3filter.RequestValidationInput{
		Request: r, PathParams: parameters, Route: route,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true},
	}
	err = openapi3filter.ValidateRequest(r.Context(), request)
	switch answer.StatusCode {
	case http.StatusBadRequest:
		if err == nil && !beyond {
			t.Errorf("%s %s %s is valid by the file, but not to the server: %s", r.Method, r.URL, body, text)
		}
	case http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnauthorized, http.StatusForbidden:
	default:
		if err != nil {
			t.Errorf("%s %s %s is not valid by the file: %v", r.Method, r.URL, body, err)
		}
	}
	response := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: request, Status: answer.StatusCode, Header: answer.Header,
		Body: io.NopCloser(bytes.NewReader(text)), Options: request.Options,
	}
	if err := openapi3filter.ValidateResponse(r.Context(), response); err != nil {
		t.Errorf("the answer to %s %s isn't as the file says: %v\n%s", r.Method, r.URL, err, text)
	}
}

func TestTheFileHasEveryRoute(t *testing.T) {
	t.Parallel()
	described := map[string]string{}
	spec.operations(func(path, method string, operation *openapi3.Operation) {
		described[method+" "+path] = operation.OperationID
	})
	for _, route := range routes {
		if key := route.method + " " + route.path; described[key] != route.operation {
			t.Errorf("%s is %q in the file, and %q in the server", key, described[key], route.operation)
		}
		delete(described, route.method+" "+route.path)
	}
	for key := range described {
		t.Errorf("the server has no %s", key)
	}
}

func TestTheFileHasEveryProblem(t *testing.T) {
	t.Parallel()
	described := map[string]bool{}
	for _, kind := range spec.doc.Components.Schemas["problem"].Value.Properties["type"].Value.Enum {
		described[fmt.Sprint(kind)] = true
	}
	for kind := range titles {
		if !described[problemPrefix+kind] {
			t.Errorf("the file doesn't have %s", kind)
		}
	}
	if len(described) != len(titles) {
		t.Errorf("the file has %d problems, the server %d", len(described), len(titles))
	}
}

// The comparison of the file with the server finds differences.
func TestADifferenceIsNoticed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status       int
		kind, answer string
	}{
		"a status":       {http.StatusTeapot, "application/json", `{}`},
		"a type":         {http.StatusOK, "text/plain", `{}`},
		"a field":        {http.StatusOK, "application/json", `{"resource":"a","grant_id":"b","was_held":true,"more":1}`},
		"a kind":         {http.StatusOK, "application/json", `{"resource":"a","grant_id":"b","was_held":1}`},
		"a missing one":  {http.StatusOK, "application/json", `{"resource":"a","grant_id":"b"}`},
		"a valid answer": {http.StatusOK, "application/json", `{"resource":"a","grant_id":"b","was_held":true}`},
	} {
		noticed := &failures{TB: t}
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://x/v1/resources/a/release", strings.NewReader(`{"grant_id":"b"}`))
		r.Header.Set("Content-Type", "application/json")
		own := &specification{doc: spec.doc, router: spec.router, seen: map[string]bool{}}
		own.hold(noticed, r, `{"grant_id":"b"}`, &http.Response{StatusCode: c.status, Header: http.Header{"Content-Type": {c.kind}}}, []byte(c.answer), false)
		if valid := name == "a valid answer"; valid == (noticed.n > 0) {
			t.Errorf("%s: %d failures", name, noticed.n)
		}
	}
}

// failures counts the errors of a test instead of failing it.
type failures struct {
	testing.TB
	n int
}

func (f *failures) Errorf(string, ...any) { f.n++ }
