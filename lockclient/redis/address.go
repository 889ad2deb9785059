package redis

import (
	"maps"
	"slices"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// address returns the server's name for errors: host and port, never credentials.
// go-redis does not report the addresses behind Sentinel; its own errors name them.
func address(client goredis.UniversalClient) string {
	switch c := client.(type) {
	case *goredis.Client:
		if c.Options().Addr == "FailoverClient" {
			return "Sentinel's master"
		}
		return c.Options().Addr
	case *goredis.ClusterClient:
		return strings.Join(c.Options().Addrs, ",")
	case *goredis.Ring:
		return strings.Join(slices.Sorted(maps.Values(c.Options().Addrs)), ",")
	}
	return "unknown address"
}
