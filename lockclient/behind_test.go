package lockclient_test

import (
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
)

// After a revocation the store's counter is always behind, so no warning is logged.
func TestACounterBehindARevocationIsNoWarning(t *testing.T) {
	t.Parallel()
	_, conn := startPostgres(t)
	var log stack.Log
	client := newClient(t, redisStore(t, startRedis(t)), lockclient.Options{Sealers: []lockclient.Sealer{lockclient.PostgresSealer{Querier: conn, Source: "redis"}}, Logger: log.Logger()})
	release(t, acquire(t, client))
	stack.MustExec(t, conn, "SELECT wirefence.revoke('orders')")
	if lease := acquire(t, client); lease.Token() != 3 {
		t.Errorf("token %d behind a revocation of 1", lease.Token())
	} else {
		release(t, lease)
	}
	if text := log.String(); strings.Contains(text, "level=WARN") || !strings.Contains(text, "raised past a revocation") {
		t.Errorf("logged %s", text)
	}
	stack.MustExec(t, conn, "SELECT wirefence.seal('orders', 10, 'rival', 'redis')")
	release(t, acquire(t, client))
	if text := log.String(); !strings.Contains(text, `level=WARN msg="the lease store's token counter is behind" resource=orders counted=4 sealed=10`) {
		t.Errorf("behind another's seal it logged %s", text)
	}
}
