// Package connstring reads the connection strings of PostgreSQL that settings hold, by libpq's rules. All users of a
// setting read it here, so that what one of them accepts works for the others. The driver's own reader sends a server what
// it doesn't know, so the driver gets what it knows alone.
//
// It imports nothing of this module.
package connstring

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jackc/pgservicefile"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Pool reads a connection string for a pool, and libpq's variables for what it doesn't say. An error is the settings', not
// the server's, and quotes nothing of the connection string. The files that this names, such as passfile, are read again
// for each new connection, and so is its Origin. Sessions speak UTF-8, as Go does, whatever client_encoding is.
func Pool(text string) (*pgxpool.Config, error) {
	bare, origin := Cut(text)
	s, err := Parse(bare)
	if err != nil {
		return nil, err
	}
	if s["password"] != "" {
		origin.Command = ""
	}
	if err = cmp.Or(s.complete(), s.Check()); err != nil {
		return nil, err
	}
	cfg, err := s.config()
	if err != nil {
		return nil, err
	}
	origin.renew(cfg.ConnConfig)
	cfg.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		now, err := Conn(text)
		if err == nil {
			c.Host, c.Port, c.LookupFunc = now.Host, now.Port, now.LookupFunc
			c.Password, c.TLSConfig, c.Fallbacks = now.Password, now.TLSConfig, now.Fallbacks
		}
		return err
	}
	return cfg, nil
}

// Conn is Pool for single connections.
func Conn(text string) (*pgx.ConnConfig, error) {
	cfg, err := Pool(text)
	if err != nil {
		return nil, err
	}
	return cfg.ConnConfig, nil
}

// complete adds what the service and the environment say.
func (s Settings) complete() error {
	add := func(more map[string]string) {
		for keyword, value := range more {
			if _, set := s[keyword]; !set && value != "" {
				s[keyword] = value
			}
		}
	}
	if service := cmp.Or(s["service"], os.Getenv("PGSERVICE")); service != "" {
		home, _ := os.UserHomeDir()
		file, err := pgservicefile.ReadServicefile(cmp.Or(os.Getenv("PGSERVICEFILE"), filepath.Join(home, ".pg_service.conf")))
		if err != nil {
			return errors.New("the file of its service can't be read")
		}
		found, err := file.GetService(service)
		if err != nil {
			return errors.New("its service isn't in the service file")
		}
		for keyword := range found.Settings {
			if _, known := keywords[keyword]; !known {
				return errors.New("its service has a parameter that libpq doesn't know")
			}
		}
		add(found.Settings)
	}
	environment := map[string]string{}
	for keyword, variable := range keywords {
		if variable != "" {
			environment[keyword] = os.Getenv(variable)
		}
	}
	add(environment)
	return nil
}

// drivers are the parameters that the driver has, too.
var drivers = []string{
	"application_name", "channel_binding", "dbname", "krbsrvname", "max_protocol_version", "min_protocol_version", "options",
	"passfile", "password", "require_auth", "service", "sslcert", "sslcertmode", "sslkey", "sslmode", "sslnegotiation", "sslpassword",
	"sslrootcert", "sslsni", "target_session_attrs", "user",
}

// config returns the driver's configuration of checked settings.
func (s Settings) config() (*pgxpool.Config, error) {
	servers, err := s.Servers()
	if err != nil {
		return nil, err
	}
	if s["load_balance_hosts"] == "random" {
		rand.Shuffle(len(servers), func(i, j int) { servers[i], servers[j] = servers[j], servers[i] })
	}
	theirs := Settings{}
	for _, keyword := range drivers {
		if value, set := s[keyword]; set {
			theirs[keyword] = value
		}
	}
	var names, ports []string
	addresses := map[string][]string{}
	for _, server := range servers {
		if strings.HasPrefix(server.Name, "@") {
			return nil, errors.New("its host is an abstract socket, which is not supported here")
		}
		names, ports = append(names, server.Name), append(ports, server.Port)
		if server.Address != server.Name {
			addresses[server.Name] = append(addresses[server.Name], server.Address)
		}
	}
	theirs["host"], theirs["port"] = strings.Join(names, ","), strings.Join(ports, ",")
	pool, err := pgxpool.ParseConfig(theirs.String())
	if err != nil {
		return nil, concealed(err)
	}
	cfg := pool.ConnConfig
	cfg.ConnectTimeout = s.ConnectTimeout()
	dialer := &net.Dialer{Timeout: cfg.ConnectTimeout}
	s.SetSockets(dialer)
	cfg.DialFunc = dialer.DialContext
	lookup := cfg.LookupFunc
	cfg.LookupFunc = func(ctx context.Context, host string) ([]string, error) {
		if known := addresses[host]; known != nil {
			return known, nil
		}
		return lookup(ctx, host)
	}
	maps.DeleteFunc(cfg.RuntimeParams, func(name, _ string) bool { // what the driver has taken from the service
		_, known := keywords[name]
		return known && name != "options"
	})
	if name := cmp.Or(s["application_name"], s["fallback_application_name"]); name != "" {
		cfg.RuntimeParams["application_name"] = name
	}
	cfg.RuntimeParams["client_encoding"] = "UTF8"
	return pool, s.setVerification(cfg)
}

// setVerification has all TLS configurations of the driver verify as libpq does.
func (s Settings) setVerification(cfg *pgx.ConnConfig) error {
	set := func(c *tls.Config, host string) error {
		if c == nil {
			return nil
		}
		s.SetTLS(c)
		if !strings.HasPrefix(s["sslmode"], "verify-") {
			return nil
		}
		if c.RootCAs == nil {
			return fmt.Errorf("its sslmode=%s needs sslrootcert: the file of the authority's certificate, or system", s["sslmode"])
		}
		if s["sslmode"] == "verify-full" {
			c.InsecureSkipVerify = true // VerifyConnection verifies
			c.VerifyConnection = func(state tls.ConnectionState) error { return Verify(state.PeerCertificates, c.RootCAs, host) }
		}
		return nil
	}
	err := set(cfg.TLSConfig, cfg.Host)
	for _, f := range cfg.Fallbacks {
		err = cmp.Or(err, set(f.TLSConfig, f.Host))
	}
	return err
}

// concealed returns an error of the driver without the connection string and the names of files.
func concealed(err error) error {
	if wrong := (*pgconn.ParseConfigError)(nil); errors.As(err, &wrong) {
		if file := (*fs.PathError)(nil); errors.As(err, &file) {
			return fmt.Errorf("a file that it names can't be read: %w", file.Err)
		}
		const before = "`: " // The driver's text is: cannot parse `…`: why
		says := wrong.Error()
		return errors.New(says[strings.LastIndex(says, before)+len(before):])
	}
	return err
}

// String returns a connection string of keywords and values.
func (s Settings) String() string {
	var words []string
	for _, keyword := range slices.Sorted(maps.Keys(s)) {
		words = append(words, keyword+"='"+strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s[keyword])+"'")
	}
	return strings.Join(words, " ")
}

// At returns a connection string that differs from a valid one in the server alone, which is given as host:port.
func At(text, address string) string {
	bare, origin := Cut(text)
	s, err := Parse(bare)
	if err != nil {
		return text
	}
	delete(s, "hostaddr")
	s["host"], s["port"], _ = net.SplitHostPort(address)
	return origin.Of(s.String())
}
