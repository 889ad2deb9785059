package fencingtest

import (
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// A session that carried a fence and was reset, as pools do, carries none, and its next fence counts
// at once: the answer to the question ahead of VACUUM says nothing about it.
func TestAFenceBehindAReset(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		for _, reset := range []string{"DISCARD ALL", "RESET ALL", "SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL"} {
			for _, p := range protocols[:2] {
				c := w.connect(t)
				c.Must("SET wirefence.token = 'orders=34'", "SELECT 1", reset, "VACUUM jobs")
				stack.WantState(t, p.run(c, "DO $$ BEGIN INSERT INTO jobs (token) VALUES (33); END $$"+comment(33)), "WF001", p.name, reset)
				stack.WantState(t, p.run(c, insertOf(33)+comment(33)), "WF001", p.name, reset)
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
