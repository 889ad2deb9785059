package address

import (
	"fmt"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"etcd://localhost":                           "||[localhost:2379]||map[]",
		"etcd://a,b:99,c/":                           "||[a:2379 b:99 c:2379]||map[]",
		"etcd://[::1]:7,[::2]/leases/of/x/":          "||[[::1]:7 [::2]:2379]|leases/of/x|map[]",
		"etcd://me:s%40%2F,c@a:1,b/p?tls=true":       "me|s@/,c|[a:1 b:2379]|p|map[tls:true]",
		"etcd://me:a@b@a?session=5s&ca=%2Fx%2Fy.pem": "me|a@b|[a:2379]||map[ca:/x/y.pem session:5s]",
	} {
		u, err := Parse(text, "etcd", "2379", "session")
		if got := fmt.Sprintf("%s|%s|%v|%s|%v", u.User, u.Password, u.Hosts, u.Path, u.Settings); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
	}
}

func TestParseRefusesAndHidesThePassword(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "etcd://",
		"http://u:sesame@a":             "etcd://",
		"etcd://":                       "host is empty",
		"etcd://u:sesame@a,,b":          "host is empty",
		"etcd://u:sesame@a:port":        "invalid port",
		"etcd://u:sesame@a:65536":       "invalid port",
		"etcd://u:sesame@[::1":          "malformed",
		"etcd://u:%zzsesame@a":          "percent-encoding",
		"etcd://u:ses ame@a":            "percent-encoding",
		"etcd://u:sesame/x@a":           "invalid port",
		"etcd://u:sesame@a?nothing=1":   "nothing",
		"etcd://u:sesame@a?tls=1&tls=2": "one value",
		"etcd://u:sesame@a?tls=":        "one value",
		"etcd://u:sesame@a?%zz":         "malformed",
		"etcd://u:sesame@a#b":           "#",
	} {
		_, err := Parse(text, "etcd", "2379")
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestTLS(t *testing.T) {
	for query, want := range map[string]string{
		"":                            "none",
		"tls=false":                   "none",
		"tls=true":                    "tls",
		"tls=yes":                     "true or false",
		"ca=/no/such.pem":             "/no/such.pem",
		"tls=false&ca=x":              "tls=true",
		"tls=true&ca=address.go":      "no certificate",
		"tls=true&cert=address.go":    "cert and key",
		"cert=address.go&key=no.such": "no.such",
	} {
		u, err := Parse("etcd://a?"+query, "etcd", "2379")
		if err != nil {
			t.Fatal(err)
		}
		config, err := u.TLS()
		got := "tls"
		switch {
		case err != nil:
			got = err.Error()
		case config == nil:
			got = "none"
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
}
