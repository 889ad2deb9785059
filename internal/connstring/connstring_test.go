package connstring

import (
	"strings"
	"testing"
)

func TestErrorsShowNoPassword(t *testing.T) {
	for text, want := range map[string]string{
		"postgres://u:geh/eim@h:5432/app":                                   "invalid port",
		"postgres://u:geheim@h:port/":                                       "port",
		"postgres://u:geh eim@h/":                                           "no valid URL",
		"postgres://u:%zzgeheim@h/":                                         "no valid URL",
		"postgres://h/app?password=geheim&sslmode=loose":                    "sslmode",
		"host=h password='geh eim":                                          "unterminated",
		"host=h password=geheim port=x":                                     "port",
		"postgres://u:geheim@h1:5432,h2:5432/app?target_session_attrs=some": "target_session_attrs",
		"geheim": "no connection string",
	} {
		_, err := Conn(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "geh") || strings.Contains(err.Error(), "eim") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Parameters for a pool, or for the driver, aren't sent to the server.
func TestServersAreSentTheirOwnParameters(t *testing.T) {
	for _, text := range []string{
		"postgres://u:p@h1:5432,h2:5433/app?pool_max_conns=50&pool_min_idle_conns=1&default_query_exec_mode=exec&application_name=mine",
		"host=h1,h2 port=5432,5433 dbname=app pool_max_conn_lifetime=1h statement_cache_capacity=7 application_name=mine",
	} {
		cfg, err := Conn(text)
		if err != nil {
			t.Fatal(err)
		}
		if len(cfg.RuntimeParams) != 1 || cfg.RuntimeParams["application_name"] != "mine" || len(cfg.Fallbacks) == 0 {
			t.Errorf("%s: %v, and %d fallbacks", text, cfg.RuntimeParams, len(cfg.Fallbacks))
		}
	}
}

func TestAtAnotherServer(t *testing.T) {
	for _, text := range []string{
		"postgres://u:p%40@h1:5432,h2:5433/app?target_session_attrs=read-write&application_name=my%20o%2bw+n&sslmode=verify-full",
		"postgresql:///app?host=/tmp&port=5433&user=u&password=p%40&application_name=my%20o%2bw+n&sslmode=verify-full",
		"host=h1,h2 port=5432,5433 dbname=app user=u password='p@' application_name='my o+w+n' sslmode=verify-full",
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
