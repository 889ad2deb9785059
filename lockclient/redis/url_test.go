package redis_test

import (
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/lockclient/redis"
)

func TestOpenHidesABadURL(t *testing.T) {
	for url, want := range map[string]string{
		"open-sesame":                                      "not a URL",
		"redis://:open-sesame@host:port":                   "host 1 of 1",
		"redis://:open-sesame@host:65536":                  "host 1 of 1",
		"redis://:open-sesame@host/-1":                     "negative",
		"redis-sentinel://:open-sesame@a/-1?master_name=m": "negative",
		"http://:open-sesame@host":                         "scheme",
		"redis://:open-sesame@host/x":                      "database",
		"redis://:open-sesame@host/0?nothing=1":            "nothing",
		"redis://:open/sesame@host":                        "not a URL",
		"redis://:12/open-sesame@host:6379":                "not a URL",
		"redis://:open?sesame@host":                        "not a URL",
		"redis://:open#sesame@host":                        "not a URL",
		"redis://:open%sesame@host":                        "not a URL",
		"redis://user:open-sesame":                         "host 1 of 1",
		"redis://:open-sesame@host?sentinel_password=%zz":  "not a URL",
		"redis://:open-sesame@a,b":                         "redis-sentinel:// or redis-cluster://",
		"redis://:open-sesame@a?master_name=m":             "redis-sentinel://",
		"redis://:open-sesame@a?tls_server_name=m":         "rediss",
		"unix://:open-sesame@":                             "empty unix socket path",

		"redis-sentinel://:open-sesame@a,b":                                        "master_name is missing",
		"redis-sentinel://:open-sesame@?master_name=m":                             "host 1 of 1",
		"redis-sentinel://:open-sesame@a,,b?master_name=m":                         "host 2 of 3",
		"redis-sentinel://:open-sesame@a:?master_name=m":                           "host 1 of 1",
		"redis-sentinel://:open-sesame@a/zero?master_name=m":                       "database",
		"redis-sentinel://a?master_name=m&password=open-sesame":                    "sentinel_password",
		"redis-sentinel://:open-sesame@a?master_name=m&replica_only=true":          "masters only",
		"redis-sentinel://:open-sesame@a?master_name=m&route_by_latency=true":      "masters only",
		"redis-sentinel://:open-sesame@a?master_name=m&sentinel_password=a@sesame": "not a URL",
		"redis-sentinel://:open-sesame@a?master_name=m&dial_timeout=long":          "dial_timeout",

		"redis-cluster://:open-sesame@a,b/1":                 "database 0 only",
		"redis-cluster://:open-sesame@a,b?db=1":              "database 0 only",
		"redis-cluster://:open-sesame@a,b?master_name=m":     "redis-sentinel://",
		"redis-cluster://:open-sesame@a,b?read_only=true":    "masters only",
		"redis-cluster://:open-sesame@a,b?skip_verify=true":  "needs TLS",
		"rediss-cluster://:open-sesame@a,b?skip_verify=oops": "skip_verify must be",
		"redis-cluster://:open-sesame@a,b:x":                 "host 2 of 2",
	} {
		store, err := redis.Open(url)
		if err == nil {
			_ = store.Close()
			t.Errorf("%s: opened", url)
		} else if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: %v, want %s", url, err, want)
		}
	}
}

// Errors name the servers of a connection string, and nothing else of it.
func TestOpenReadsEveryForm(t *testing.T) {
	for url, want := range map[string]string{
		"redis://":                                   "localhost:6379",
		"redis://user:open-sesame@host":              "host:6379",
		"redis://:open%2Fsesame@[::1]:7/3":           "[::1]:7",
		"rediss://host?tls_server_name=other":        "host:6379",
		"unix://:open-sesame@/run/redis.sock?db=2":   "/run/redis.sock",
		"redis-cluster://:open-sesame@a,b:7,[::1]/0": "a:6379,b:7,[::1]:6379",
		"rediss-cluster://a,b?skip_verify=true":      "a:6379,b:6379",
		"redis-sentinel://u:open-sesame@a,b:7/2?master_name=m&sentinel_username=s&sentinel_password=sesame": "m of Sentinels a:26379,b:7",
		"rediss-sentinel://a,b?master_name=m&skip_verify=true&tls_server_name=redis":                        "m of Sentinels a:26379,b:26379",
	} {
		store, err := redis.Open(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		_ = store.Close() // so that nothing is looked up
		_, err = store.Acquire(t.Context(), "r", "me", time.Minute)
		if err == nil || !strings.Contains(err.Error(), "redis at "+want+": ") || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: %v, want %s", url, err, want)
		}
	}
}
