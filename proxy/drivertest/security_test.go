package drivertest

import "net/url"

// security is how a driver's connection is protected.
type security string

const (
	plain   security = "plain"
	binding security = "binding" // TLS on both sides, with channel binding
)

// securities are the ways that the matrix knows.
var securities = []security{plain}

func (s security) title() string {
	return map[security]string{plain: "plain", binding: "TLS, channel binding"}[s]
}

// libpq is what libpq reads from the environment.
func (s security) libpq() []string { return []string{"PGSSLMODE=disable"} }

// query is the same in the connection string of a driver in Go.
func (s security) query() url.Values { return url.Values{"sslmode": {"disable"}} }
