package lockclient_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
)

// record is a ledger that reports the last grant.
type record struct {
	ledger
	holder string
	former bool
	ask    func(ctx context.Context) error
}

func (r *record) LastGrant(ctx context.Context, resource fence.Resource) (fence.Grant, error) {
	if r.ask != nil {
		if err := r.ask(ctx); err != nil {
			return fence.Grant{}, err
		}
	}
	last, err := r.LastToken(ctx, resource)
	return fence.Grant{Resource: resource, Token: last, Holder: r.holder, Former: r.former}, err
}

const noticedBy = ttl/3 + ttl/30 // the first renewal

func TestARevokedLeaseEndsAtTheNextRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sealer := newMemory(), &record{}
		client := newClient(t, store, lockclient.Options{Sealers: []lockclient.Sealer{sealer}})
		for _, releases := range []bool{true, false} {
			lease := acquire(t, client)
			sealer.last["orders"]++
			if took := wantEnd(t, lease, lockclient.ErrRevoked); took > noticedBy {
				t.Errorf("noticed after %v", took)
			}
			end, _ := errors.AsType[*lockclient.EndError](lease.Err())
			if end.Successor.Token != lease.Token()+1 || end.Successor.Holder != "" {
				t.Errorf("revoked by %+v", end.Successor)
			}
			if store.holder("orders") != lease.Holder() || lease.Remaining() != margin {
				t.Errorf("held by %q, %v remain to stop in", store.holder("orders"), lease.Remaining())
			}
			if releases {
				release(t, lease)
			} else { // the client does it when the margin is over
				<-time.After(margin + time.Nanosecond)
				synctest.Wait()
			}
			if store.holder("orders") != "" {
				t.Errorf("held by %q", store.holder("orders"))
			}
		}
		if last := acquire(t, client); last.Token() != 5 {
			t.Errorf("token %d after two revocations of tokens 1 and 3", last.Token())
		}
	})
}

// A client that is closed before a revoked holder's margin is over frees the lease.
func TestCloseFreesARevokedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sealer := newMemory(), &record{}
		client := newClient(t, store, lockclient.Options{Sealers: []lockclient.Sealer{sealer}})
		lease := acquire(t, client)
		sealer.last["orders"]++
		wantEnd(t, lease, lockclient.ErrRevoked)
		if err := client.Close(t.Context()); err != nil || store.holder("orders") != "" {
			t.Errorf("closed: %v; held by %q", err, store.holder("orders"))
		}
	})
}

func TestALostLeaseNamesItsSuccessor(t *testing.T) {
	for _, c := range []struct {
		name    string
		sealer  func(*record) lockclient.Sealer
		forget  bool // the lease in the store is another's, too
		reason  error
		message string
	}{
		{"split store", func(r *record) lockclient.Sealer { return r }, false, lockclient.ErrLost, `lease lost: "orders", token 1: token 9 was granted to rival/1`},
		{"forgetful store", func(r *record) lockclient.Sealer { return r }, true, lockclient.ErrLost, `lease lost: "orders", token 1: token 9 was granted to rival/1`},
		{"no names", func(r *record) lockclient.Sealer { return &r.ledger }, true, lockclient.ErrLost, `lease lost: "orders", token 1: token 9 was granted to another`},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, sealer := newMemory(), &record{}
				lease := acquire(t, newClient(t, store, lockclient.Options{Sealers: []lockclient.Sealer{c.sealer(sealer)}}))
				if c.forget {
					store.forget()
				}
				if ok, err := sealer.Seal(t.Context(), "orders", 9, "rival/1"); !ok || err != nil {
					t.Fatal(ok, err)
				}
				sealer.holder = "rival/1"
				if took := wantEnd(t, lease, c.reason); took > noticedBy {
					t.Errorf("noticed after %v", took)
				}
				if lease.Err().Error() != c.message || lease.Remaining() != 0 {
					t.Errorf("%v; %v remain", lease.Err(), lease.Remaining())
				}
			})
		})
	}
}

// A sealer that does not answer ends no held lease, and keeps no lost one.
func TestAnUnansweredQuestionEndsNoLease(t *testing.T) {
	for name, ask := range map[string]func(ctx context.Context) error{
		"failing": func(context.Context) error { return errDown },
		"hanging": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newMemory()
				lease := acquire(t, newClient(t, store, lockclient.Options{Sealers: []lockclient.Sealer{&record{ask: ask}}}))
				<-time.After(time.Hour)
				if lease.Err() != nil {
					t.Fatal(lease.Err())
				}
				store.forget()
				if took := wantEnd(t, lease, lockclient.ErrLost); took > noticedBy+time.Second {
					t.Errorf("noticed after %v", took)
				}
			})
		})
	}
}

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
