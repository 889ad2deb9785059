package api

import (
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// refusal returns why every request at an endpoint will be refused, or "".
func (s *Server) refusal(at endpoint) string {
	if at.loopback || at.socket || s.options.Token != nil {
		return ""
	}
	return "the listener isn't on loopback: set WIREFENCE_ADMIN_TOKEN_FILE to a file with a bearer token, or " + at.setting + " to a loopback address"
}

// admit returns the caller, or refuses the request. On loopback without a token, any user of
// the machine may call, but not revoke leases or change policies. A page in a browser on the
// machine must not: it can send simple requests anywhere, and reach loopback by any name that
// resolves to it.
func (s *Server) admit(at endpoint, w http.ResponseWriter, r *http.Request) (c caller, err error) {
	c.scope = scopeLease
	refusal := s.refusal(at)
	switch {
	case s.options.Token != nil:
		var known bool
		if c, known = s.options.Token.caller(r); !known {
			w.Header().Set("WWW-Authenticate", `Bearer realm="wirefence"`)
			return c, &problem{Status: http.StatusUnauthorized, Type: "token-required", Detail: "Send Authorization: Bearer with a token of the file that WIREFENCE_ADMIN_TOKEN_FILE names."}
		}
	case refusal != "":
		return c, &problem{Status: http.StatusForbidden, Type: "token-file-required", Detail: refusal}
	case !at.socket && !isLoopback(r.Host):
		return c, &problem{Status: http.StatusForbidden, Type: "cross-origin", Detail: "Without a token, the Host must be localhost or a loopback address."}
	}
	if err := checkOrigin(r); err != nil {
		return c, &problem{Status: http.StatusForbidden, Type: "cross-origin", Detail: err.Error()}
	}
	if r.Method == http.MethodPost || r.Method == http.MethodPatch {
		if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
			return c, &problem{Status: http.StatusUnsupportedMediaType, Type: "unsupported-media-type", Detail: "Send Content-Type: application/json."}
		}
	}
	return c, nil
}

// stillAdmits reports whether the token of an admitted request is still in the file.
func (s *Server) stillAdmits(r *http.Request) bool {
	if s.options.Token == nil {
		return true
	}
	_, known := s.options.Token.caller(r)
	return known
}

// allow refuses a caller with an insufficient scope.
func (s *Server) allow(r *http.Request, operation string, needs scope) error {
	c, _ := callerOf(r.Context())
	if c.scope >= needs {
		return nil
	}
	s.logOf(r).Info("API request refused: its scope does not permit it", "operation", operation, "scope", c.scope.String(), "needs", needs.String())
	p := &problem{
		Status: http.StatusForbidden, Type: "scope-required", RequiredScope: needs.String(),
		Detail: fmt.Sprintf("The token of %s has the scope %s; this needs %s.", c.name, c.scope, needs),
	}
	if s.options.Token == nil {
		p.Detail = fmt.Sprintf("This needs a token of the scope %s: set WIREFENCE_ADMIN_TOKEN_FILE to a file that has one.", needs)
	}
	return p
}

// checkOrigin refuses a browser's cross-origin request. It refuses a GET, too: a page can't read
// the answer, but could open all event streams.
func checkOrigin(r *http.Request) error {
	changing := *r
	changing.Method = http.MethodPost
	return new(http.CrossOriginProtection).Check(&changing)
}

// Guard protects the paths that need no token against pages in a browser on this machine: on
// loopback, requests must name a loopback address, or none, as HTTP/1.0 allows and no
// browser does.
func (s *Server) Guard(next http.Handler) http.Handler {
	return ownHost(endpoint{loopback: s.options.Loopback}, next)
}

func ownHost(at endpoint, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if at.loopback && r.Host != "" && !isLoopback(r.Host) {
			http.Error(w, "The Host must be localhost or a loopback address.", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isLoopback reports whether a Host header names this machine's loopback.
func isLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}
