package api

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"

	"github.com/jackc/pgx/v5/pgxpool"
)

// granted has a worker acquire a resource, and returns its fence.
func (w *world) granted(t *testing.T, name string) (fence string) {
	t.Helper()
	return w.post(t, path(name, "acquire"), `{"holder":"worker-a"}`).want(200, "").string("fence")
}

func (w *world) begin(t *testing.T, fence string, max float64) answer {
	t.Helper()
	return w.post(t, "/v1/effects", fmt.Sprintf(`{"fence":%q,"max_seconds":%v}`, fence, max))
}

func (w *world) end(t *testing.T, effect answer) answer {
	t.Helper()
	return w.send(t, request{method: "DELETE", path: "/v1/effects/" + effect.string("effect_id")})
}

// succeed seals the next token of a resource by a superuser's connection.
func (w *world) succeed(t *testing.T, name string) (sealed <-chan error) {
	t.Helper()
	conn, done := w.admin(t), make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "SELECT wirefence.seal($1, (SELECT last_token + 1 FROM wirefence.resource_locks WHERE resource_id = $1), 'worker-b')", name)
		done <- err
	}()
	return done
}

func (w *world) awaitSeal(t *testing.T) {
	t.Helper()
	conn := w.admin(t)
	stack.Eventually(t, "the seal waits", func() (waits bool) {
		err := conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND mode = 'ExclusiveLock' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`).Scan(&waits)
		return err == nil && waits
	})
}

func (w *world) preemptAfter(t *testing.T, interval string) {
	t.Helper()
	stack.MustExec(t, w.admin(t), "UPDATE wirefence.resource_locks SET preempt_after = '"+interval+"'")
}

// awaitOpen waits until n effects are open.
func (w *world) awaitOpen(t *testing.T, n int) {
	t.Helper()
	stack.Eventually(t, "effects are open", func() bool { return len(w.effects.places) == n && testutil.ToFloat64(w.metrics.effects) == float64(n) })
}

func TestChecksOverHTTP(t *testing.T) {
	onEach(t, nil, func(t *testing.T, w *world) {
		name := fresh(t)
		fence := w.granted(t, name)
		check := func() answer { return w.post(t, "/v1/check", fmt.Sprintf(`{"fence":%q}`, fence)) }
		if got := check().want(200, ""); got.string("fence") != fence {
			t.Errorf("got %s", got.text)
		}
		if err := <-w.succeed(t, name); err != nil {
			t.Fatal(err)
		}
		refused := check().want(409, "fence-refused")
		if refused.string("sqlstate") != "WF001" || refused.string("hint") == "" || refused.string("detail") == "" {
			t.Errorf("got %s", refused.text)
		}
	})
}

func TestATakeoverWaitsForAnEffect(t *testing.T) {
	onEach(t, nil, func(t *testing.T, w *world) {
		name := fresh(t)
		fence := w.granted(t, name)
		w.preemptAfter(t, "1 minute")
		effect := w.begin(t, fence, 60).want(200, "")
		if left := effect.number("expires_in_seconds"); left < 60 || left > 70 {
			t.Errorf("it expires in %v s", left)
		}
		sealed := w.succeed(t, name)
		w.awaitSeal(t)
		select {
		case err := <-sealed:
			t.Errorf("sealed while the effect is open: %v", err)
		case <-time.After(300 * time.Millisecond):
		}
		ended := w.end(t, effect).want(200, "")
		if held := ended.number("held_seconds"); held < 0.3 || ended.string("fence") != fence {
			t.Errorf("got %s", ended.text)
		}
		if err := <-sealed; err != nil {
			t.Error(err)
		}
		// After a lost answer the caller asks again.
		if again := w.end(t, effect).want(200, ""); again.text != ended.text {
			t.Errorf("then %s, now %s", ended.text, again.text)
		}
		w.begin(t, fence, 1).want(409, "fence-refused")
		w.awaitOpen(t, 0)
	})
}

func TestAnEffectThatIsLost(t *testing.T) {
	onEach(t, withTokens(t), func(t *testing.T, w *world) {
		w.token = operateSecret
		for name, lose := range map[string]func(name string){
			"preempted": func(name string) {
				w.preemptAfter(t, "50 ms")
				if err := <-w.succeed(t, name); err != nil {
					t.Error(err)
				}
			},
			"revoked": func(name string) { w.post(t, path(name, "revoke"), `{}`).want(200, "") },
		} {
			name := fresh(t) + name
			effect := w.begin(t, w.granted(t, name), 60).want(200, "")
			lose(name)
			w.end(t, effect).want(409, "effect-lost")
			w.end(t, effect).want(409, "effect-lost")
		}
		w.awaitOpen(t, 0)
	})
}

// An effect without its caller delays a takeover for max_seconds at most.
func TestAnEffectEndsWithItsTime(t *testing.T) {
	onEach(t, nil, func(t *testing.T, w *world) {
		name := fresh(t)
		fence := w.granted(t, name)
		w.preemptAfter(t, "1 minute")
		effect := w.begin(t, fence, 0.3).want(200, "")
		began := time.Now()
		if err := <-w.succeed(t, name); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("the takeover took %v", took)
		}
		w.end(t, effect).want(409, "effect-lost")
		w.awaitOpen(t, 0)
	})
}

func TestEffectsAreBounded(t *testing.T) {
	onEach(t, func(o *Options) { o.MaxEffects = 2 }, func(t *testing.T, w *world) {
		fence := w.granted(t, fresh(t))
		first, second := w.begin(t, fence, 60).want(200, ""), w.begin(t, fence, 60).want(200, "")
		w.awaitOpen(t, 2)
		if full := w.begin(t, fence, 60).want(429, "too-many-effects"); full.header.Get("Retry-After") == "" {
			t.Error("it isn't said when to try again")
		}
		w.end(t, first).want(200, "")
		third := w.begin(t, fence, 60).want(200, "")
		w.end(t, second).want(200, "")
		w.end(t, third).want(200, "")
		w.awaitOpen(t, 0)
		w.begin(t, fence[:len(fence)-1]+"99999", 60).want(409, "fence-refused") // nor does what is refused
		w.awaitOpen(t, 0)
	})
}

func TestAnEffectThatIsNotKnown(t *testing.T) {
	t.Parallel()
	w := serve(t, "postgres", nil)
	w.send(t, request{method: "DELETE", path: "/v1/effects/0123"}).want(404, "no-such-effect")
}

// Only the outcomes of the last effects are kept.
func TestOldEffectsAreForgotten(t *testing.T) {
	t.Parallel()
	e := newOpenEffects(1)
	for i := range keptLast + 5 {
		o := &openEffect{id: fmt.Sprint(i), began: time.Now()}
		e.all[o.id] = o
		e.note(o)
	}
	if e.find("4") != nil || e.find("5") == nil || len(e.all) != keptLast || len(e.ended) != keptLast {
		t.Errorf("%d are kept", len(e.all))
	}
	old := &openEffect{id: "old", began: time.Now().Add(-keptFor - maxEffect - time.Second)}
	e = newOpenEffects(1)
	e.all["old"] = old
	e.note(old)
	if len(e.all) != 0 || len(e.ended) != 0 {
		t.Error("what is old is kept")
	}
}

// A draining process lets callers end open effects, and begins none.
func TestEffectsWhileDraining(t *testing.T) {
	onEach(t, nil, func(t *testing.T, w *world) {
		fence := w.granted(t, fresh(t))
		effect := w.begin(t, fence, 60).want(200, "")
		w.Drain()
		w.begin(t, fence, 60).want(503, "draining")
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := w.AwaitEffects(short); err == nil {
			t.Error("no effect was awaited")
		}
		waited := make(chan error, 1)
		go func() { waited <- w.AwaitEffects(t.Context()) }()
		w.end(t, effect).want(200, "")
		if err := <-waited; err != nil {
			t.Error(err)
		}
		if err := w.AwaitEffects(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The end of the process ends open effects.
func TestEffectsEndWithTheProcess(t *testing.T) {
	t.Parallel()
	w := serve(t, "postgres", nil)
	effect := w.begin(t, w.granted(t, fresh(t)), 60).want(200, "")
	if err := w.Close(t.Context()); err != nil {
		t.Error(err)
	}
	w.awaitOpen(t, 0)
	w.end(t, effect).want(409, "effect-lost")
}

// A failure of the database ends an effect, and its caller learns it.
func TestTheDatabaseFailsDuringAnEffect(t *testing.T) {
	t.Parallel()
	server := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{})).EndWith(t)
	name := stack.Database(t, server)
	pool := stack.Started(pgxpool.New(t.Context(), server.URL(name))).EndWith(t)
	w := serve(t, "postgres", func(o *Options) { o.Effects = pool })
	effect := w.begin(t, "elsewhere=1", 60).want(200, "")
	server.Kill()
	w.awaitOpen(t, 0)
	w.end(t, effect).want(409, "effect-lost")
	w.begin(t, "elsewhere=1", 60).want(503, "unavailable")
}
