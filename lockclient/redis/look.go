package redis

import (
	"context"
	_ "embed"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

//go:embed look.lua
var lookLua string

var lookScript = goredis.NewScript(lookLua)

var _ lockclient.Looker = (*Store)(nil)

// Look implements lockclient.Looker.
func (s *Store) Look(ctx context.Context, resource fence.Resource) (lockclient.Attempt, error) {
	reply, err := lookScript.Run(ctx, s.client, []string{LeaseKey(resource)}).Slice()
	if err != nil {
		return lockclient.Attempt{}, s.fail(ctx, "looking at the lease of", resource, err)
	}
	seen := lockclient.Attempt{}
	if len(reply) == 2 {
		left, _ := reply[1].(int64) // below 0 for a key without expiry
		seen.Holder, _ = reply[0].(string)
		seen.Remaining = max(0, time.Duration(left)*time.Millisecond)
	}
	return seen, nil
}
