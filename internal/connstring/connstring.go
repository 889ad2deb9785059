// Package connstring reads the connection strings of PostgreSQL that settings hold. All users of
// a setting read it here, so that what one of them accepts works for the others.
//
// It imports nothing of this module.
package connstring

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Pool reads a connection string for a pool. An error doesn't show a text that is none at all:
// it may be a password, whose file was named in the place of the connection string's. Nor does
// it show the connection string, of which a part may be the password's if that has a slash or
// an @.
func Pool(text string) (*pgxpool.Config, error) {
	if text != "" && !strings.Contains(text, "://") && !strings.Contains(text, "=") {
		return nil, errors.New("it is no connection string: give one as in postgres://issuer@db.internal/app")
	}
	cfg, err := pgxpool.ParseConfig(text)
	if wrong := (*pgconn.ParseConfigError)(nil); errors.As(err, &wrong) {
		// The driver's text is: cannot parse `…`: why
		says := wrong.Error()
		if at := strings.LastIndex(says, "`: "); at >= 0 {
			says = says[at+len("`: "):]
		}
		if strings.HasPrefix(says, "failed to parse as URL") { // it cites what it takes for the port
			says = "it is no valid URL: percent-encode special characters of the user and the password, and give a port as a number"
		}
		return nil, errors.New(says)
	}
	return cfg, err
}

// Conn reads a connection string for single connections, as Pool does. Parameters of pools, such
// as pool_max_conns, have no effect; a server that is sent one refuses the session.
func Conn(text string) (*pgx.ConnConfig, error) {
	cfg, err := Pool(text)
	if err != nil {
		return nil, err
	}
	return cfg.ConnConfig, nil
}

// At returns a connection string that differs from a valid one in the server alone, which is given
// as host:port.
func At(text, address string) string {
	host, port, _ := net.SplitHostPort(address)
	u, err := url.Parse(text)
	if err != nil || !strings.HasPrefix(u.Scheme, "postgres") {
		return fmt.Sprintf("%s host='%s' port=%s", text, strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(host), port)
	}
	parameters := slices.DeleteFunc(strings.Split(u.RawQuery, "&"), func(p string) bool {
		return strings.HasPrefix(p, "host=") || strings.HasPrefix(p, "port=")
	})
	u.Host, u.RawQuery = address, strings.Join(parameters, "&")
	return u.String()
}
