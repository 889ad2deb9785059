package fencingtest

import (
	"slices"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// The names of sessions with the current fence and a stale one.
const goodName, badName = "wirefence:orders=34~nightly job", "wirefence:orders=33~nightly job"

// carriesNames lets fences in application_name count, or not.
func (w *world) carriesNames(t testing.TB, counts string) {
	t.Helper()
	w.Exec(t, "select wirefence.set_carry_name("+counts+", 'a test')")
}

// A fence in application_name counts from the login on, as psql sends it for PGAPPNAME, and follows
// what PostgreSQL does with that setting.
func TestAFenceInTheName(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, w *world) {
		w.carriesNames(t, "true")
		c := w.connect(t, "application_name", badName)
		c.refused()
		c.Fails("do 'begin end'", "WF001")
		c.Must("set application_name = 'psql'")
		c.accepted()
		c.Must("reset application_name")
		c.refused()
		c.Must("set application_name = '" + goodName + "'")
		c.accepted()
		c.Must("begin", "set local application_name = '"+badName+"'")
		c.refused()
		c.Must("rollback")
		c.accepted()
		c.Must("discard all")
		c.refused()
		c.Must("set wirefence.token = 'orders=34'") // comes before the name
		c.accepted()
		c.Must("reset wirefence.token")
		c.refused()
		for _, p := range protocols {
			stack.WantState(t, p.run(c, insertOf(34)+comment(34)), "", p.name, "a comment")
		}

		c = w.begins(t)
		rename := func(name, state string) {
			t.Helper()
			stack.WantState(t, c.Extended("select set_config($1, $2, false)", "application_name", name), "", name)
			for _, p := range protocols {
				stack.WantState(t, p.run(c, insert), state, p.name, name)
			}
		}
		rename(badName, "WF001")
		rename("wirefence:orders=3", "WF004")
		rename("wirefence:Orders=34~", "WF004")
		c.Fails("set application_name = 'psql'; set application_name = '"+badName+"'; "+insert, "WF001")
		c.Must("set application_name = '" + goodName + "'; " + insertOf(34))
		w.wantRowsOf(t, 33, 0)

		w.Exec(t, "alter role postgres in database "+w.Name+" set application_name = '"+badName+"'")
		w.connect(t).refused()
	})
}

// A session gives back what it holds for a name that it changes.
func TestANewNameHoldsNothingOfTheFormer(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w.carriesNames(t, "true")
		for _, rename := range []string{"set application_name = 'psql'", "select set_config('application_name', 'psql', false)", "discard all"} {
			c := w.connect(t)
			c.Must("set application_name = '" + goodName + "'")
			w.warm("", c)
			c.Must(rename, "select 1")
			if w.holds(c) {
				t.Errorf("%s: it still holds", rename)
			}
			c.Must("set application_name = '" + goodName + "'")
			c.accepted()
			hangUp(c)
		}
	})
}

// While names don't count, such a session is like one without a fence, also where another
// session's fence would be refused.
func TestANameThatDoesNotCount(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w.Exec(t, "create procedure nothing() language plpgsql as 'begin end'")
		var states [2][]string
		for n, c := range []*client{{Client: stack.Login(t, w.Addr(), w.Name, "application_name", badName)}, w.connect(t, "application_name", badName)} {
			states[n] = behindSuspects(t, c, w.Name)
			stack.WantState(t, c.Batch(parseOf("", insertOf(1)), bindOf("", ""), executeOf(""), parseOf("", "call nothing()"), bindOf("", ""), executeOf("")), "")
			hangUp(c)
		}
		if !slices.Equal(states[0], states[1]) {
			t.Errorf("direct %q, through the proxy %q", states[0], states[1])
		}
		strict := w.own(t, proxy.Options{UnfencedWrites: proxy.Reject})
		strict.connect(t, "application_name", goodName).Fails(insert, "WF002")
		w.carriesNames(t, "true")
		strict.connect(t, "application_name", goodName).Must(insertOf(34))
		strict.connect(t, "application_name", badName).Fails(insert, "WF001")
		leader := w.own(t, proxy.Options{Lease: newLease("orders=34")})
		leader.connect(t).accepted()
		c := leader.connect(t, "application_name", badName)
		c.refused() // a lease of the proxy's own comes after the name
		c.Must("set application_name = 'psql'")
		c.accepted()
	})
}

// PgBouncer hands the name of a client on with each transaction.
func TestNamesThroughAPooler(t *testing.T) {
	for _, p := range []struct {
		name string
		cfg  servers.PgBouncerConfig
	}{{"transaction", one}, {"session", each}} {
		t.Run(p.name, func(t *testing.T) {
			w := poolerBefore(t, p.cfg, proxy.Options{})
			w.carriesNames(t, "true")
			good, bad, other := w.connect(t, "application_name", goodName), w.connect(t, "application_name", badName), w.connect(t, "application_name", "psql")
			for range 3 {
				good.Must(insertOf(34))
				bad.Fails(insert, "WF001")
				other.Must(insertOf(0))
				good.Must("set application_name = '" + badName + "'")
				good.Fails(insert, "WF001")
				good.Must("set application_name = '" + goodName + "'")
				good.Must(insertOf(34))
			}
			w.wantRowsOf(t, 33, 0)
		})
	}
	t.Run("behind the proxy", func(t *testing.T) {
		w := poolerBehind(t, one, proxy.Options{})
		c := w.connect(t, "application_name", badName)
		c.Must(insertOf(0))
		w.carriesNames(t, "true")
		_, err := stack.TryLogin(t, w.proxy, w.Name, "application_name", goodName)
		stack.WantState(t, err, "WF006")
		w.connect(t, "application_name", "psql").Must(insertOf(0))
		w = w.beforePooler(t, each, proxy.Options{Upstream: "?pooling=session"})
		w.connect(t, "application_name", goodName).Must(insertOf(34))
		w.connect(t, "application_name", badName).Fails(insert, "WF001")
	})
}

// Texts of pools between two users reset a session, a stale one, too, whatever the order of their
// parts. Its next fence counts at once: the answer to the question ahead of VACUUM says nothing of it.
func TestAFenceBehindAReset(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, w *world) {
		for _, reset := range []string{
			"discard all", "reset all", "close all; set session authorization default; reset all; deallocate all; unlisten *; select pg_advisory_unlock_all()",
			"set session authorization default; reset all; deallocate all; close all; unlisten *; select pg_advisory_unlock_all(); discard plans; discard sequences; discard temp",
			"select pg_advisory_unlock_all(); close all; unlisten *; reset all", "reset all; set session authorization default",
		} {
			for _, p := range protocols[:2] {
				c := w.begins(t)
				c.Must("set wirefence.token = '" + stale + "'")
				c.Fails("select 1", "WF001")
				c.Must(reset)
				if got := c.Value("show wirefence.token"); got != "" {
					t.Errorf("%s: the variable is %q", reset, got)
				}
				c.Close()
				c = w.connect(t)
				c.Must("set wirefence.token = 'orders=34'", "select 1", reset, "vacuum jobs")
				stack.WantState(t, p.run(c, "do $$ begin insert into jobs (token) values (33); end $$"+comment(33)), "WF001", p.name, reset)
				stack.WantState(t, p.run(c, insertOf(33)+comment(33)), "WF001", p.name, reset)
				c.Close()
			}
		}
		w.wantRowsOf(t, 33, 0)
	})
}

// A reset brings back the fence that a session had at its login.
func TestAResetToTheFenceOfTheLogin(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		for _, hides := range []string{"SET wirefence.token = ''", "SELECT set_config('wirefence.token', '', false)"} {
			for _, forgets := range []string{"RESET ROLE", "RESET search_path", "DEALLOCATE ALL"} {
				for _, reset := range []string{"DISCARD ALL", "RESET ALL"} {
					for _, p := range protocols[:2] {
						c := w.connect(t, "options", "-c wirefence.token=orders=33")
						c.Must(hides, forgets, "SELECT 1", reset)
						stack.WantState(t, p.run(c, insertOf(33)), "WF001", p.name, hides, forgets, reset)
						c.Close()
					}
				}
			}
		}
	})
}

// A schema that was dropped under a session leaves it no hold to give back. Others who come later
// are as without a proxy.
func TestASchemaThatIsDropped(t *testing.T) {
	w := newWorld(t, oldAndNew[0])
	w = w.own(t, proxy.Options{})
	c, unfenced := w.fenced(t, "orders=34"), w.connect(t)
	c.Must("SELECT 1", "SELECT 2", "SELECT 3")
	w.Exec(t, "DROP SCHEMA wirefence CASCADE")
	// They run while the hold lasts, and are refused from then on.
	stack.Eventually(t, "nothing runs under a fence that nobody can check", func() bool {
		return c.Simple("VACUUM jobs") != nil && c.Simple("SELECT 1") != nil && c.Simple("DO $$ BEGIN END $$") != nil
	})
	w.connect(t).Must("SELECT 'wirefence'", "SELECT 1", "VACUUM jobs", "DO $$ BEGIN END $$")
	unfenced.Must("SELECT 'wirefence'", "VACUUM jobs", "SELECT 1")
}
