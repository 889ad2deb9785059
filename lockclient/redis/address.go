package redis

import (
	"maps"
	"slices"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// address is how errors name the server: host and port, never credentials. For
// Sentinel go-redis doesn't tell the addresses; its own errors do.
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
