package connstring

import (
	"cmp"
	"errors"
	"net/url"
	"slices"
	"strings"
)

// Settings are the parameters of a connection string by libpq's keywords.
type Settings map[string]string

// keywords are libpq's, with the variables that give what a connection string doesn't
// (documentation, "Parameter Key Words", "Environment Variables").
var keywords = map[string]string{
	"application_name": "PGAPPNAME", "channel_binding": "PGCHANNELBINDING", "client_encoding": "PGCLIENTENCODING",
	"connect_timeout": "PGCONNECT_TIMEOUT", "dbname": "PGDATABASE", "fallback_application_name": "", "gssdelegation": "PGGSSDELEGATION",
	"gssencmode": "PGGSSENCMODE", "gsslib": "PGGSSLIB", "host": "PGHOST", "hostaddr": "PGHOSTADDR", "keepalives": "",
	"keepalives_count": "", "keepalives_idle": "", "keepalives_interval": "", "krbsrvname": "PGKRBSRVNAME",
	"load_balance_hosts": "PGLOADBALANCEHOSTS", "max_protocol_version": "PGMAXPROTOCOLVERSION",
	"min_protocol_version": "PGMINPROTOCOLVERSION", "oauth_client_id": "", "oauth_client_secret": "", "oauth_issuer": "",
	"oauth_scope": "", "options": "PGOPTIONS", "passfile": "PGPASSFILE", "password": "PGPASSWORD", "port": "PGPORT",
	"replication": "", "require_auth": "PGREQUIREAUTH", "requirepeer": "PGREQUIREPEER", "scram_client_key": "",
	"scram_server_key": "", "service": "PGSERVICE", "ssl_max_protocol_version": "PGSSLMAXPROTOCOLVERSION",
	"ssl_min_protocol_version": "PGSSLMINPROTOCOLVERSION", "sslcert": "PGSSLCERT", "sslcertmode": "PGSSLCERTMODE",
	"sslcompression": "PGSSLCOMPRESSION", "sslcrl": "PGSSLCRL", "sslcrldir": "PGSSLCRLDIR", "sslkey": "PGSSLKEY", "sslkeylogfile": "",
	"sslmode": "PGSSLMODE", "sslnegotiation": "PGSSLNEGOTIATION", "sslpassword": "", "sslrootcert": "PGSSLROOTCERT",
	"sslsni": "PGSSLSNI", "target_session_attrs": "PGTARGETSESSIONATTRS", "tcp_user_timeout": "", "user": "PGUSER",
}

// Parse reads a connection string by libpq's grammar (documentation, "Connection Strings"), of a URL or of keywords and
// values. It may have the given keywords besides libpq's. An error quotes nothing of it: what is mistyped may be the
// password.
func Parse(text string, more ...string) (Settings, error) {
	s, err := Settings{}, error(nil)
	rest, isURL := strings.CutPrefix(text, "postgres://")
	if !isURL {
		rest, isURL = strings.CutPrefix(text, "postgresql://")
	}
	switch {
	case strings.Contains(text, "\x00"):
		return nil, errors.New("it has a NUL byte")
	case isURL:
		err = s.parseURL(rest)
	case strings.Contains(text, "://") && !strings.Contains(text[:strings.Index(text, "://")], "="):
		return nil, errors.New("it is no URL of a PostgreSQL server: that begins with postgres:// or postgresql://")
	case text != "" && !strings.Contains(text, "="):
		return nil, errors.New("it is no connection string: give one as in postgres://issuer@db.internal/app")
	default:
		err = s.parseKeywords(text)
	}
	for keyword := range s {
		if _, known := keywords[keyword]; err == nil && !known && !slices.Contains(more, keyword) {
			err = errors.New("it has a parameter that libpq doesn't know: set a server's parameter by options=-c%20name=value")
		}
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// parseURL is libpq's conninfo_uri_parse_options behind the scheme.
func (s Settings) parseURL(rest string) error {
	if at := strings.IndexAny(rest, "@/"); at >= 0 && rest[at] == '@' {
		user, password, _ := strings.Cut(rest[:at], ":")
		rest = rest[at+1:]
		if err := cmp.Or(s.decode("user", user), s.decode("password", password)); err != nil {
			return err
		}
	}
	until := func(ends string) (part string) {
		end := strings.IndexAny(rest, ends)
		if end < 0 {
			end = len(rest)
		}
		part, rest = rest[:end], rest[end:]
		return part
	}
	var hosts, ports string
	for more := true; more; {
		if strings.HasPrefix(rest, "[") {
			rest = rest[1:]
			address := until("]")
			if address == "" || rest == "" || len(rest) > 1 && !strings.ContainsRune(":/?,", rune(rest[1])) {
				return errors.New("it is no valid URL: an IPv6 address is in brackets, as in [::1]:5432")
			}
			hosts, rest = hosts+address, rest[1:]
		} else {
			hosts += until(":/?,")
		}
		if strings.HasPrefix(rest, ":") {
			rest = rest[1:]
			ports += until("/?,")
		}
		if rest, more = strings.CutPrefix(rest, ","); more {
			hosts, ports = hosts+",", ports+","
		}
	}
	database, parameters, _ := strings.Cut(rest, "?")
	err := cmp.Or(s.decode("host", hosts), s.decode("port", ports), s.decode("dbname", strings.TrimPrefix(database, "/")))
	for err == nil && parameters != "" {
		var parameter string
		parameter, parameters, _ = strings.Cut(parameters, "&")
		keyword, value, found := strings.Cut(parameter, "=")
		if !found || strings.Contains(value, "=") {
			return errors.New("it is no valid URL: a parameter has the form name=value, with %3D for = in the value")
		}
		keyword, err1 := unescape(keyword)
		value, err2 := unescape(value)
		if keyword == "ssl" && value == "true" { // JDBC's
			keyword, value = "sslmode", "require"
		}
		s[keyword], err = value, cmp.Or(err1, err2)
	}
	return err
}

// decode sets a parameter that is given in front of the others, if it isn't empty.
func (s Settings) decode(keyword, text string) error {
	value, err := unescape(text)
	if value != "" {
		s[keyword] = value
	}
	return err
}

// unescape decodes a part of a URL. As in libpq, a plus is a plus.
func unescape(text string) (string, error) {
	decoded, err := url.PathUnescape(strings.Trim(text, " "))
	if err != nil || strings.ContainsAny(strings.Trim(text, " "), " ") || strings.Contains(decoded, "\x00") {
		return "", errors.New("it is no valid URL: percent-encode special characters of the user and the password")
	}
	return decoded, nil
}

const space = " \t\n\r\v\f"

// parseKeywords is libpq's conninfo_parse.
func (s Settings) parseKeywords(rest string) error {
	for rest = strings.TrimLeft(rest, space); rest != ""; rest = strings.TrimLeft(rest, space) {
		keyword, after, found := strings.Cut(rest, "=")
		keyword = strings.TrimRight(keyword, space)
		if !found || keyword == "" || strings.ContainsAny(keyword, space) {
			return errors.New("it is no connection string: it has a word without =")
		}
		after, quoted := strings.CutPrefix(strings.TrimLeft(after, space), "'")
		var value strings.Builder
		i := 0
		for ; i < len(after) && (quoted && after[i] != '\'' || !quoted && !strings.ContainsRune(space, rune(after[i]))); i++ {
			if after[i] == '\\' {
				i++
			}
			if i < len(after) {
				value.WriteByte(after[i])
			}
		}
		if quoted && i >= len(after) {
			return errors.New("it has an unterminated quoted value")
		}
		s[keyword], rest = value.String(), strings.TrimPrefix(after[min(i, len(after)):], "'")
	}
	return nil
}
