package connstring

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A mistyped connection string is refused, and the error shows nothing of it.
func TestErrorsShowNothingOfTheText(t *testing.T) {
	for text, want := range map[string]string{
		"postgres://u:geh/eim@h:5432/app":                                   "port",
		"postgres://u:geheim@h:port/":                                       "port",
		"postgres://u:geh eim@h/":                                           "no valid URL",
		"postgres://u:%zzgeheim@h/":                                         "no valid URL",
		"postgres://[geheim/":                                               "in brackets",
		"postgres://h/app?geheim":                                           "name=value",
		"postgres://h/app?password=geheim&sslmode=loose":                    "sslmode",
		"postgres://h/app?sslrootcert=/geheim":                              "no such file",
		"postgres://h/app?require_auth=geheim":                              "require_auth",
		"postgres://h/app?service=geheim":                                   "service",
		"host=h password='geh eim":                                          "unterminated",
		"host=h password=geheim port=x":                                     "port",
		"host=h pass word=geheim":                                           "a word without =",
		"postgres://u:geheim@h1:5432,h2:5432/app?target_session_attrs=some": "target_session_attrs",
		"geheim":                                          "no connection string",
		"postgresql+psycopg2://u:geheim@db/app":           "begins with postgres://", // SQLAlchemy
		"POSTGRES://u:geheim@db/app?sslmode=prefer":       "begins with postgres://",
		" postgres://u:geheim@db/app":                     "begins with postgres://",
		"jdbc:postgresql://db/app?user=u&password=geheim": "begins with postgres://",
		"Host=db;Username=u;Password=geheim;Database=app": "libpq doesn't know", // Npgsql
		"host=db uesr=u password=geheim":                  "libpq doesn't know",
		"postgres://u:geheim@h/app?pool_max_conns=3":      "libpq doesn't know", // pgx
		"postgres://u:geheim@h/app?search_path=geheim":    "options=-c",         // JDBC, pgx
	} {
		_, err := Conn(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "geh") || strings.Contains(err.Error(), "eim") {
			t.Errorf("%s: %v, want an error about %q", text, err, want)
		}
	}
}

// What libpq takes and nothing here can do is refused, and not forgotten or sent to the server.
func TestUnsupportedParameters(t *testing.T) {
	for _, parameter := range []string{
		"sslcrl=/x", "sslcrldir=/x", "requirepeer=postgres", "replication=database", "gssencmode=require", "sslkeylogfile=/x",
		"oauth_issuer=x", "scram_client_key=x",
	} {
		keyword, _, _ := strings.Cut(parameter, "=")
		if _, err := Conn("host=h " + parameter); err == nil || !strings.Contains(err.Error(), keyword) {
			t.Errorf("%s: %v", parameter, err)
		}
	}
	t.Setenv("PGSSLCRL", "/x")
	if _, err := Conn("host=h"); err == nil || !strings.Contains(err.Error(), "sslcrl") {
		t.Errorf("PGSSLCRL: %v", err)
	}
}

// A service, of the text or of the environment, gives what the text doesn't.
func TestServices(t *testing.T) {
	file := filepath.Join(t.TempDir(), "services")
	if err := os.WriteFile(file, []byte("[app]\nhost=db.internal\nport=5433\nuser=issuer\nkeepalives_idle=10\nfallback_application_name=mine\n[wrong]\nnothing=1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PGSERVICEFILE", file)
	for _, c := range []struct{ text, environment, user string }{
		{"service=app", "", "issuer"}, {"service=app user=me", "", "me"}, {"postgres:///?service=app", "wrong", "issuer"}, {"dbname=x", "app", "issuer"},
	} {
		t.Setenv("PGSERVICE", c.environment)
		cfg, err := Conn(c.text)
		if err != nil || cfg.Host != "db.internal" || cfg.Port != 5433 || cfg.User != c.user ||
			!maps.Equal(cfg.RuntimeParams, map[string]string{"application_name": "mine", "client_encoding": "UTF8"}) {
			t.Errorf("%s with PGSERVICE=%s: %+v, %v", c.text, c.environment, cfg, err)
		}
	}
	t.Setenv("PGSERVICE", "wrong")
	if _, err := Conn("host=db"); err == nil || !strings.Contains(err.Error(), "its service") {
		t.Errorf("a service with a parameter that libpq doesn't know: %v", err)
	}
}

func TestAtAnotherServer(t *testing.T) {
	for _, text := range []string{
		"postgres://u:p%40@h1:5432,h2:5433/app?target_session_attrs=read-write&application_name=my%20o%2bw+n&sslrootcert=system",
		"postgresql:///app?host=/tmp&port=5433&user=u&password=p%40&application_name=my%20o%2bw+n&sslrootcert=system",
		"host=h1,h2 port=5432,5433 dbname=app user=u password='p@' application_name='my o+w+n' sslrootcert=system",
	} {
		for address, host := range map[string]string{"worker-1:5434": "worker-1", "[::1]:5434": "::1"} {
			cfg, err := Conn(At(text, address))
			if err != nil {
				t.Fatal(err)
			}
			if cfg.Host != host || cfg.Port != 5434 || len(cfg.Fallbacks) > 0 || cfg.TLSConfig.ServerName != host ||
				cfg.User != "u" || cfg.Password != "p@" || cfg.Database != "app" || cfg.RuntimeParams["application_name"] != "my o+w+n" {
				t.Errorf("%s at %s: %+v", text, address, cfg.Config)
			}
		}
	}
}
