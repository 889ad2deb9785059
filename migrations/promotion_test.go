package migrations_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// firstAfterPromotion is less than every token that is granted first after a promotion:
// the seconds since 1970, times 2^20, of a time in 2025.
const firstAfterPromotion = 1_750_000_000 << 20

// standby starts a standby of the server, with all commits so far.
func (db database) standby(t *testing.T) database {
	t.Helper()
	server := stack.Started(db.StartStandby(t.Context())).EndWith(t)
	return database{server, db.name}
}

// fallBehind lets a standby replay the commits so far and no more.
func (db database) fallBehind(t *testing.T, primary database) {
	t.Helper()
	if err := db.FallBehind(t.Context(), primary.Postgres); err != nil {
		t.Fatal(err)
	}
}

// failOver ends the primary as a crash would, and promotes the standby.
func failOver(t *testing.T, primary, standby database) {
	t.Helper()
	primary.Kill()
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// wantFormer requires that a fence is refused in all ways because the database was
// promoted.
func wantFormer(t *testing.T, db database, fence string) {
	t.Helper()
	app := db.app(t)
	for _, isolation := range isolations {
		mustExec(t, app, "SET default_transaction_isolation = '"+isolation+"'")
		err := exec(app, "SELECT wirefence.check($1)", fence)
		wantCode(t, err, "WF001")
		if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && !contains(refusal.Detail, "promoted or restored") {
			t.Errorf("check of %s in %s: %s", fence, isolation, refusal.Detail)
		}
	}
	mustExec(t, app, "RESET default_transaction_isolation")
	for _, manner := range []string{"group", "exchange", "needed"} {
		wantCode(t, exec(app, "SELECT wirefence.proxy_hold(7, $1, NULL, 'nothing', false, $2)", fence, manner), "WF001")
	}
	mustExec(t, app, "SELECT set_config('wirefence.token', $1, false)", fence)
	wantCode(t, exec(app, "SELECT wirefence.check()"), "WF001")
}

func wantCurrent(t *testing.T, db database, fence string) {
	t.Helper()
	app := db.app(t)
	for _, isolation := range isolations {
		mustExec(t, app, "SET default_transaction_isolation = '"+isolation+"'")
		if err := exec(app, "SELECT wirefence.check($1)", fence); err != nil {
			t.Errorf("check of %s in %s: %v", fence, isolation, err)
		}
	}
	mustExec(t, app, "RESET default_transaction_isolation")
	hold(t, app, fence)
}

// granted acquires the lease of a resource, frees it, and returns the token.
func granted(t *testing.T, db database, resource string) int64 {
	t.Helper()
	issuer := db.as(t, "issuer")
	grant, token := win(t, issuer, resource, "worker", 60e9)
	mustExec(t, issuer, "SELECT wirefence.release($1, $2)", resource, grant)
	return token
}

// promotion is what one test looks at, in a database of its own, when servers that many share are
// promoted.
type promotion struct {
	missed func(t *testing.T, standby database) // while the standbys have fallen behind
	first  func(t *testing.T, standby database) // behind the promotion of one of them
	second func(t *testing.T, standby database) // behind that of the other, which knows nothing of the first
}

// Each part prepares the primary's database, before the standbys have it.
var promotions = map[string]func(t *testing.T, primary database) promotion{
	"grants that are lost": lostGrants, "seals": sealsBehind, "operators": operatorsBehind, "two standbys": twoStandbys, "tokens above the time": aboveTheTime,
	"the last tokens": lastTokens, "a session of the standby": standbySession, "a clock that goes back": clockGoesBack,
	"a standby": onStandby, "claims on a standby": claimsOnStandby, "migrating a standby": migratingStandby,
}

// Two standbys of one primary are promoted, one after the other, without its last commits.
//
// Evidence: I9
func TestPromotions(t *testing.T) {
	stack.OnEach(t, stack.Versions(), func(t *testing.T, major int) {
		server := stack.Postgres(t, major)
		databases, all := map[string]database{}, map[string]promotion{}
		for name, prepare := range promotions {
			databases[name] = withSchema(t, server)
			all[name] = prepare(t, databases[name])
		}
		primary := database{server, "postgres"}
		first, second := primary.standby(t), primary.standby(t)
		first.fallBehind(t, primary)
		second.fallBehind(t, primary)
		each := func(when string, of func(promotion) func(*testing.T, database), server *servers.Postgres) {
			for name, p := range all {
				if test := of(p); test != nil {
					t.Run(name+", "+when, func(t *testing.T) { test(t, database{server, databases[name].name}) })
				}
			}
		}
		each("missed", func(p promotion) func(*testing.T, database) { return p.missed }, first.Postgres)
		failOver(t, primary, first)
		each("first", func(p promotion) func(*testing.T, database) { return p.first }, first.Postgres)
		failOver(t, first, second)
		each("second", func(p promotion) func(*testing.T, database) { return p.second }, second.Postgres)
	})
}

// A standby without the last grants accepts neither the token of a former holder nor the last
// token, and the next one exceeds both.
func lostGrants(t *testing.T, primary database) promotion {
	primary.seal(t, "orders", 33)
	mustExec(t, primary.as(t, "issuer"), "SELECT wirefence.declare_resource('declared', 'a test'), wirefence.declare_resource('trusted', 'a test', failover => 'trust')")
	primary.seal(t, "trusted", 5)
	mustExec(t, primary.app(t), "SELECT wirefence.check('foreign=7')")
	return promotion{missed: func(t *testing.T, _ database) {
		primary.seal(t, "orders", 34)
		primary.seal(t, "declared", 1)
		primary.seal(t, "new", 1)
		wantCode(t, exec(primary.app(t), "SELECT wirefence.check('orders=33')"), "WF001")
		wantCurrent(t, primary, "orders=34,declared=1")
	}, first: func(t *testing.T, standby database) {
		for _, fence := range []string{"orders=34", "orders=35"} { // higher than what is recorded, and so unknown besides
			wantCode(t, exec(standby.app(t), "SELECT wirefence.check($1)", fence), "WF001")
		}
		for _, fence := range []string{"orders=33", "new=1", "new=2", "foreign=7,orders=34", "foreign=7,orders=33"} {
			wantFormer(t, standby, fence)
		}
		wantCode(t, exec(standby.app(t), "SELECT wirefence.check('declared=1')"), "WF003")
		wantCurrent(t, standby, "trusted=5")
		wantCurrent(t, standby, "foreign=7")
		mustExec(t, standby.app(t), "SELECT wirefence.check('foreign=8')")
		status := "SELECT former FROM wirefence.status() WHERE resource = $1"
		issuer := standby.as(t, "issuer")
		if !value[bool](t, issuer, status, "orders") || value[bool](t, issuer, status, "trusted") || value[bool](t, issuer, status, "foreign") {
			t.Error("status() tells another story")
		}
		for _, resource := range []string{"orders", "declared", "new"} {
			token := granted(t, standby, resource)
			if token < firstAfterPromotion || token >= 1<<53 {
				t.Errorf("the next token of %s is %d", resource, token)
			}
			wantCurrent(t, standby, fmt.Sprintf("%s=%d", resource, token))
			for _, old := range []string{"1", "33", "34"} {
				wantCode(t, exec(standby.app(t), "SELECT wirefence.check($1)", resource+"="+old), "WF001")
			}
			if next := granted(t, standby, resource); next != token+1 {
				t.Errorf("behind %d comes %d", token, next)
			}
		}
		if token := granted(t, standby, "later"); token < firstAfterPromotion {
			t.Errorf("the first token of a new resource is %d", token)
		}
		if value[bool](t, issuer, status, "orders") {
			t.Error("status() still says that orders awaits a grant")
		}
	}}
}

// A store that counts by itself learns from the seal which token it has to exceed.
func sealsBehind(t *testing.T, primary database) promotion {
	primary.seal(t, "orders", 33)
	return promotion{first: func(t *testing.T, standby database) {
		issuer := standby.as(t, "issuer")
		const seal = "SELECT wirefence.seal($1, $2, 'worker', 'redis')"
		for resource, token := range map[string]int64{"orders": 35, "new": 1} {
			if value[bool](t, issuer, seal, resource, token) {
				t.Errorf("%s=%d is sealed, though more may have been granted", resource, token)
			}
			surpass := standby.lastToken(t, resource)
			if surpass < firstAfterPromotion {
				t.Errorf("the token to surpass for %s is %d", resource, surpass)
			}
			wantCode(t, exec(standby.app(t), "SELECT wirefence.check($1)", fmt.Sprintf("%s=%d", resource, token)), "WF001")
			if value[bool](t, issuer, seal, resource, surpass) || !value[bool](t, issuer, seal, resource, surpass+1) {
				t.Errorf("%d of %s is not the one to surpass", surpass, resource)
			}
			wantCurrent(t, standby, fmt.Sprintf("%s=%d@redis", resource, surpass+1))
		}
	}}
}

// A token by an operator after a promotion exceeds the lost ones, too.
func operatorsBehind(t *testing.T, primary database) promotion {
	for _, resource := range []string{"revoked", "moved", "numbered", "kept"} {
		primary.seal(t, resource, 33)
	}
	mustExec(t, primary.app(t), "SELECT wirefence.check('foreign=7')")
	return promotion{first: func(t *testing.T, standby database) {
		issuer := standby.as(t, "issuer")
		if last := value[int64](t, issuer, "SELECT wirefence.revoke('revoked')"); last < firstAfterPromotion {
			t.Errorf("a revocation goes to %d", last)
		}
		if last := value[int64](t, issuer, "SELECT wirefence.revoke('foreign')"); last != 8 {
			t.Errorf("a revocation of a resource that is counted elsewhere goes to %d", last)
		}
		mustExec(t, issuer, "SELECT wirefence.set_resource('moved', 'a test', source => 'etcd', last_token => 100)")
		mustExec(t, issuer, "SELECT wirefence.seal('moved', 101, 'worker', 'etcd')")
		wantCurrent(t, standby, "moved=101@etcd")
		mustExec(t, issuer, "SELECT wirefence.set_resource('kept', 'a test', preempt_after => '1 s')")
		wantFormer(t, standby, "kept=33")
		mustExec(t, issuer, "SELECT wirefence.set_resource('kept', 'a test', failover => 'trust')")
		wantCurrent(t, standby, "kept=33")
		mustExec(t, issuer, "SELECT wirefence.set_failover('trust', 'a test')")
		wantCurrent(t, standby, "numbered=33")
		mustExec(t, issuer, "SELECT wirefence.set_failover('reacquire', 'a test')")
		wantFormer(t, standby, "numbered=33")
		wantCurrent(t, standby, "kept=33")
	}}
}

// Two standbys of one primary get the same timeline. The second does not accept a grant of the first.
func twoStandbys(t *testing.T, primary database) promotion {
	primary.seal(t, "orders", 33)
	var before, fresh int64
	return promotion{first: func(t *testing.T, standby database) {
		before, fresh = granted(t, standby, "orders"), granted(t, standby, "new")
	}, second: func(t *testing.T, standby database) {
		if got := look[string](t, standby, "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)"); got != "00000002" {
			t.Fatalf("the second is on timeline %s", got)
		}
		for _, fence := range []string{"orders=33", fmt.Sprintf("orders=%d", before), fmt.Sprintf("new=%d", fresh)} {
			wantCode(t, exec(standby.app(t), "SELECT wirefence.check($1)", fence), "WF001")
		}
		if after := granted(t, standby, "orders"); after == before || after <= 33 {
			t.Errorf("behind %d comes %d", before, after)
		}
		if after := granted(t, standby, "new"); after == fresh {
			t.Errorf("%d is granted twice", fresh)
		}
		wantNotAccepted(t, standby, "orders", 33, before)
		wantNotAccepted(t, standby, "new", fresh)
	}}
}

// The last known token is above the time, as that of a former service which counted
// nanoseconds, and several grants are lost. Neither of two promoted standbys grants a token
// that the primary or the other standby has granted.
func aboveTheTime(t *testing.T, primary database) promotion {
	mustExec(t, primary.app(t), "SELECT wirefence.check('orders=1800000000000000000')")
	last := granted(t, primary, "orders")
	by := map[int64]string{last: "the primary"}
	grants := func(t *testing.T, standby database) {
		for range 5 {
			token := granted(t, standby, "orders")
			if token <= last {
				t.Errorf("behind %d comes %d", last, token)
			}
			if other := by[token]; other != "" {
				t.Errorf("%d was granted by %s", token, other)
			}
			wantNotAccepted(t, standby, "orders", slices.Collect(maps.Keys(by))...)
			wantCurrent(t, standby, fmt.Sprintf("orders=%d", token))
			by[token] = "a standby"
		}
	}
	return promotion{missed: func(t *testing.T, _ database) {
		for range 5 {
			last = granted(t, primary, "orders")
			by[last] = "the primary"
		}
	}, first: grants, second: grants}
}

// A last token so high that no jump is possible uses the resource up.
func lastTokens(t *testing.T, primary database) promotion {
	const limit = 1<<63 - 1<<33
	for resource, token := range map[string]int64{"fits": limit, "exceeds": limit + 1} {
		primary.seal(t, resource, token)
	}
	return promotion{first: func(t *testing.T, standby database) {
		if token := granted(t, standby, "fits"); token <= limit+1<<32 {
			t.Errorf("behind %d comes %d", int64(limit), token)
		}
		issuer := standby.as(t, "issuer")
		for _, call := range []string{"acquire('exceeds', 'w', '1 min')", "revoke('exceeds')", "seal('exceeds', 9223372036854775807)"} {
			wantCode(t, exec(issuer, "SELECT wirefence."+call), "22003")
		}
		wantCode(t, exec(standby.app(t), "SELECT wirefence.check('exceeds=9223372036854775807')"), "WF001")
	}}
}

// wantNotAccepted requires that tokens are refused: as stale, or, where the next token of another
// standby happens to be higher, as never granted here.
func wantNotAccepted(t *testing.T, db database, resource string, tokens ...int64) {
	t.Helper()
	app := db.app(t)
	for _, token := range tokens {
		if got := code(exec(app, "SELECT wirefence.check($1)", fmt.Sprintf("%s=%d", resource, token))); got != "WF001" && got != "WF003" {
			t.Errorf("token %d of %s gets %q", token, resource, got)
		}
	}
}

// A recovered backup lacks the grants since then.
//
// Evidence: I9
func TestARestoredBackup(t *testing.T) {
	stack.OnEach(t, stack.Versions(), func(t *testing.T, major int) {
		db := withSchema(t, stack.Postgres(t, major))
		db.seal(t, "orders", 33)
		restored, err := db.Restore(t.Context(), func() error {
			db.seal(t, "orders", 34)
			db.Kill()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(restored.Close)
		after := database{restored, db.name}
		for _, fence := range []string{"orders=33", "orders=34"} {
			wantCode(t, exec(after.app(t), "SELECT wirefence.check($1)", fence), "WF001")
		}
		if token := granted(t, after, "orders"); token < firstAfterPromotion {
			t.Errorf("the next token is %d", token)
		}
	})
}

// A session of a standby is fenced from its first possible write on, after the promotion.
func standbySession(t *testing.T, primary database) promotion {
	primary.seal(t, "orders", 33)
	var app, issuer *pgx.Conn
	return promotion{missed: func(_ *testing.T, standby database) {
		app, issuer = standby.app(t), standby.as(t, "issuer")
		mustExec(t, app, "SELECT wirefence.check('orders=33')") // a standby can't tell
		wantCode(t, exec(app, holdSQL, "orders=33"), "WF006")
		if value[bool](t, issuer, "SELECT former FROM wirefence.status()") {
			t.Error("a standby says what it can't know")
		}
	}, first: func(t *testing.T, _ database) {
		wantCode(t, exec(app, "SELECT wirefence.check('orders=33')"), "WF001")
		wantCode(t, exec(app, holdSQL, "orders=33"), "WF001")
		if !value[bool](t, issuer, "SELECT former FROM wirefence.status()") {
			t.Error("the session of the issuer hasn't seen the promotion")
		}
	}}
}

// The clock went back between two promotions, so tokens of the first are from the future.
// A known token is exceeded; a lost one is never accepted.
func clockGoesBack(t *testing.T, primary database) promotion {
	ahead := look[int64](t, primary, "SELECT (extract(epoch FROM clock_timestamp() + interval '2 h') * 1048576)::bigint")
	primary.seal(t, "known", ahead)
	primary.seal(t, "lost", 33)
	return promotion{missed: func(t *testing.T, _ database) { primary.seal(t, "lost", ahead) }, first: func(t *testing.T, standby database) {
		lost := fmt.Sprintf("lost=%d", ahead)
		wantCode(t, exec(standby.app(t), "SELECT wirefence.check($1)", lost), "WF001")
		if token := granted(t, standby, "known"); token <= ahead {
			t.Errorf("behind %d comes %d", ahead, token)
		}
		token := granted(t, standby, "lost")
		if token < firstAfterPromotion || token >= ahead {
			t.Errorf("the next token is %d, with the clock behind %d", token, ahead)
		}
		wantCurrent(t, standby, fmt.Sprintf("lost=%d", token))
		wantCode(t, exec(standby.app(t), "SELECT wirefence.check($1)", lost), "WF003")
		wantCode(t, exec(standby.app(t), holdSQL, lost), "WF003")
	}}
}
