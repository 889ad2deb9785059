package connstring

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// values are those that libpq takes, and that can be honoured here.
var values = map[string]string{
	"channel_binding": "disable|prefer|require", "gssencmode": "disable|prefer", "load_balance_hosts": "disable|random",
	"max_protocol_version": "3.0|3.2|latest", "min_protocol_version": "3.0|3.2|latest",
	"sslcertmode": "disable|allow|require", "sslmode": "disable|allow|prefer|require|verify-ca|verify-full",
	"sslnegotiation": "postgres|direct", "target_session_attrs": "any|read-write|read-only|primary|standby|prefer-standby",
	"ssl_max_protocol_version": "TLSv1|TLSv1.1|TLSv1.2|TLSv1.3", "ssl_min_protocol_version": "TLSv1|TLSv1.1|TLSv1.2|TLSv1.3",
}

// unsupported are parameters of libpq whose meaning nothing here has.
var unsupported = []string{
	"oauth_client_id", "oauth_client_secret", "oauth_issuer", "oauth_scope", "replication", "requirepeer",
	"scram_client_key", "scram_server_key", "sslcrl", "sslcrldir", "sslkeylogfile",
}

// numbers are in seconds, milliseconds, or counts.
var numbers = []string{
	"connect_timeout", "keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval", "tcp_user_timeout",
}

// Check returns an error for what libpq would refuse before it connects, and for what can't be honoured.
func (s Settings) Check() error {
	for _, keyword := range slices.Sorted(maps.Keys(values)) {
		value, allowed := s[keyword], strings.Split(values[keyword], "|")
		if strings.HasSuffix(keyword, "_protocol_version") {
			value = strings.Replace(strings.ToUpper(value), "V", "v", 1)
		}
		if value != "" && !slices.Contains(allowed, value) {
			return fmt.Errorf("its %s is none of %s", keyword, strings.Join(allowed, ", "))
		}
	}
	for _, keyword := range unsupported {
		if s[keyword] != "" {
			return fmt.Errorf("its parameter %s is not supported", keyword)
		}
	}
	for _, keyword := range numbers {
		if text, set := s[keyword]; set {
			if _, err := strconv.ParseInt(strings.Trim(text, space), 10, 32); err != nil {
				return fmt.Errorf("its %s is no whole number", keyword)
			}
		}
	}
	for method := range strings.SplitSeq(s["require_auth"], ",") {
		method = strings.TrimPrefix(strings.Trim(method, space), "!")
		if s["require_auth"] != "" && !slices.Contains([]string{"password", "md5", "gss", "sspi", "scram-sha-256", "oauth", "none"}, method) {
			return errors.New("its require_auth is no list of methods of authentication")
		}
	}
	if _, err := s.Servers(); err != nil {
		return err
	}
	return s.checkTLS()
}

func (s Settings) checkTLS() error {
	mode := s["sslmode"]
	if mode == "" && s["sslrootcert"] == "system" {
		mode = "verify-full"
		s["sslmode"] = mode
	}
	least, most := s.tlsVersion("ssl_min_protocol_version"), s.tlsVersion("ssl_max_protocol_version")
	switch {
	case s["sslrootcert"] == "system" && mode != "verify-full":
		return errors.New("its sslrootcert=system needs sslmode=verify-full: anybody can have a certificate of a public authority")
	case s["sslnegotiation"] == "direct" && !slices.Contains([]string{"require", "verify-ca", "verify-full"}, mode):
		return errors.New("its sslnegotiation=direct needs sslmode=require or stronger")
	case most != 0 && least > most:
		return errors.New("its ssl_min_protocol_version is above its ssl_max_protocol_version")
	}
	return nil
}

// tlsVersion is a checked parameter, or 0.
func (s Settings) tlsVersion(keyword string) uint16 {
	return map[string]uint16{
		"TLSV1": tls.VersionTLS10, "TLSV1.1": tls.VersionTLS11, "TLSV1.2": tls.VersionTLS12, "TLSV1.3": tls.VersionTLS13,
	}[strings.ToUpper(s[keyword])]
}

// Server is one of those that a connection string names.
type Server struct {
	Name    string // which its certificate must bear; the folder of a socket, "@" and an abstract one's, or "" for libpq's default
	Address string // of hostaddr, or Name
	Port    string
}

// Servers returns the servers in order.
func (s Settings) Servers() ([]Server, error) {
	names, addresses, ports := strings.Split(s["host"], ","), strings.Split(s["hostaddr"], ","), strings.Split(s["port"], ",")
	all := make([]Server, max(len(names), len(addresses)))
	each := func(list []string, i int) string {
		if len(list) == 1 && list[0] == "" {
			return ""
		}
		return list[i]
	}
	if s["host"] != "" && s["hostaddr"] != "" && len(names) != len(addresses) {
		return nil, fmt.Errorf("it has %d hostaddr for %d hosts", len(addresses), len(names))
	}
	if len(ports) != 1 && len(ports) != len(all) {
		return nil, fmt.Errorf("it has %d ports for %d hosts: give one for all, or one for each", len(ports), len(all))
	}
	for i := range all {
		port := cmp.Or(strings.Trim(ports[min(i, len(ports)-1)], space), "5432")
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return nil, errors.New("its port is no number from 1 to 65535: percent-encode special characters of a password")
		}
		name, address := each(names, i), each(addresses, i)
		if _, err := netip.ParseAddr(address); address != "" && err != nil {
			return nil, errors.New("its hostaddr is no IP address")
		}
		all[i] = Server{cmp.Or(name, address), cmp.Or(address, name), port}
	}
	return all, nil
}

// number is a checked parameter, or 0.
func (s Settings) number(keyword string) int {
	n, _ := strconv.Atoi(strings.Trim(s[keyword], space))
	return max(n, 0)
}

// ConnectTimeout is 0 if there is none.
func (s Settings) ConnectTimeout() time.Duration {
	return time.Duration(s.number("connect_timeout")) * time.Second
}

// SetSockets has a dialer treat sockets as the settings say.
func (s Settings) SetSockets(d *net.Dialer) {
	if n, set := s["keepalives"]; set && strings.Trim(n, space) == "0" {
		d.KeepAlive, d.KeepAliveConfig = -1, net.KeepAliveConfig{}
	} else if set || s.number("keepalives_idle")+s.number("keepalives_interval")+s.number("keepalives_count") > 0 {
		seconds := func(keyword string) time.Duration { return cmp.Or(time.Duration(s.number(keyword))*time.Second, -1) }
		d.KeepAliveConfig = net.KeepAliveConfig{
			Enable: true, Idle: seconds("keepalives_idle"), Interval: seconds("keepalives_interval"), Count: cmp.Or(s.number("keepalives_count"), -1),
		}
	}
	if n := s.number("tcp_user_timeout"); n > 0 {
		d.Control = userTimeout(n, d.Control)
	}
}
