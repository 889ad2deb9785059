// Package address parses the connection strings of services that consist of several
// servers: scheme://user:password@host1:port,host2/path?setting=value. Its errors never
// contain the password.
package address

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
)

// URL is a parsed connection string.
type URL struct {
	User, Password string
	Hosts          []string // host:port, at least one
	Path           string   // without slashes around it
	Settings       map[string]string
}

// Parse parses a connection string of a scheme. A host without a port gets the given
// port. The string may have the given settings and those of TLS.
func Parse(text, scheme, port string, settings ...string) (URL, error) {
	rest, ok := strings.CutPrefix(text, scheme+"://")
	if !ok {
		return URL{}, fmt.Errorf("it does not begin with %s://", scheme)
	}
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	user, hosts := "", authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, hosts = authority[:i+1], authority[i+1:]
	}
	var u URL
	for host := range strings.SplitSeq(hosts, ",") {
		parsed, err := url.Parse(scheme + "://" + user + host + tail)
		if err != nil {
			return URL{}, withoutText(err)
		}
		if parsed.Hostname() == "" {
			return URL{}, errors.New("a host is empty")
		}
		port := cmp.Or(parsed.Port(), port)
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return URL{}, errors.New("invalid port: it is a number from 1 to 65535")
		}
		u.Hosts = append(u.Hosts, net.JoinHostPort(parsed.Hostname(), port))
		u.User = parsed.User.Username()
		u.Password, _ = parsed.User.Password()
		u.Path = strings.Trim(parsed.Path, "/")
		if u.Settings, err = single(parsed, append(settings, tlsSettings...)); err != nil {
			return URL{}, err
		}
	}
	return u, nil
}

// single reads settings, each of which may be given once.
func single(u *url.URL, known []string) (map[string]string, error) {
	if u.Fragment != "" {
		return nil, errors.New("it contains a #")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errors.New("its settings are malformed")
	}
	settings := map[string]string{}
	for name, values := range query {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("unknown setting %q, expected one of %s", name, strings.Join(known, ", "))
		}
		if len(values) != 1 || values[0] == "" {
			return nil, fmt.Errorf("setting %q needs exactly one value", name)
		}
		settings[name] = values[0]
	}
	return settings, nil
}

// withoutText removes the text, and so the password, from an error of net/url.
func withoutText(err error) error {
	if parse := (*url.Error)(nil); errors.As(err, &parse) {
		err = parse.Err
	}
	if strings.Contains(err.Error(), "userinfo") {
		return errors.New("the user or the password needs percent-encoding")
	}
	if port := "invalid port"; strings.Contains(err.Error(), port) { // the port may be part of a password
		return errors.New(port)
	}
	return errors.New("malformed host, path or percent-encoding")
}

var tlsSettings = []string{"tls", "ca", "cert", "key"}

// TLS returns the configuration for the settings tls, ca, cert and key: nil for none. ca,
// cert and key name PEM files, which TLS reads now; each of them enables TLS.
func (u URL) TLS() (*tls.Config, error) {
	files := u.Settings["ca"] + u.Settings["cert"] + u.Settings["key"]
	switch on := u.Settings["tls"]; {
	case on == "" && files == "":
		return nil, nil
	case on == "false" && files == "":
		return nil, nil
	case on == "" || on == "true":
	case on == "false":
		return nil, errors.New("ca, cert and key need tls=true")
	default:
		return nil, fmt.Errorf("tls is %q, expected true or false", on)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if file := u.Settings["ca"]; file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca: %s holds no certificate", file)
		}
	}
	if cert, key := u.Settings["cert"], u.Settings["key"]; cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("cert and key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
