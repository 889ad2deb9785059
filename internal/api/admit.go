package api

import (
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

const noTokenFile = "the listener isn't on loopback: set WIREFENCE_ADMIN_TOKEN_FILE to a file with a bearer token, or WIREFENCE_ADMIN_LISTEN to a loopback address"

// admit refuses who may not call. On loopback without a token it is the machine's
// border that keeps others out, so it must not be crossed by a browser on this
// machine: its pages send simple requests anywhere, and reach loopback under a
// name of their own if its owner has that resolve to loopback.
func (s *Server) admit(w http.ResponseWriter, r *http.Request) error {
	switch {
	case s.options.Token != nil:
		if !s.options.Token.allows(r) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="wirefence"`)
			return &problem{Status: http.StatusUnauthorized, Type: "token-required", Detail: "Send Authorization: Bearer with a token of the file that WIREFENCE_ADMIN_TOKEN_FILE names."}
		}
	case !s.options.Loopback:
		return &problem{Status: http.StatusForbidden, Type: "token-file-required", Detail: noTokenFile}
	case !isLoopback(r.Host):
		return &problem{Status: http.StatusForbidden, Type: "cross-origin", Detail: "Without a token, the Host must be localhost or a loopback address."}
	}
	if err := new(http.CrossOriginProtection).Check(r); err != nil {
		return &problem{Status: http.StatusForbidden, Type: "cross-origin", Detail: err.Error()}
	}
	if r.Method == http.MethodPost {
		if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
			return &problem{Status: http.StatusUnsupportedMediaType, Type: "unsupported-media-type", Detail: "Send Content-Type: application/json."}
		}
	}
	return nil
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
