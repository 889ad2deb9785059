package poolertest

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/proxy"
)

func TestBehindThePoolerCommentsAndLocalSettingsFence(t *testing.T) {
	p, addr := behind(t, two, "", proxy.Options{})
	for name, run := range protocols {
		t.Run(name, func(t *testing.T) {
			c := p.connect(addr)
			for _, token := range []int{34, 33} {
				want := map[int]string{34: "", 33: "WF001"}[token]
				wantState(t, run(c, insert(token, comment(token))), want, "comment", token)

				c.must("BEGIN")
				wantState(t, run(c, "SET LOCAL wirefence.token = 'orders="+itoa(token)+"'"), "")
				wantState(t, run(c, insert(token, "")), want, "SET LOCAL", token)
				c.must("ROLLBACK")

				c.must("BEGIN")
				wantState(t, c.extended("SELECT set_config('wirefence.token', $1, true)", "orders="+itoa(token)), "")
				wantState(t, run(c, insert(token, "")), want, "set_config", token)
				wantState(t, run(c, "COMMIT"), "")
				wantState(t, run(c, insert(0, "")), "", "unfenced, behind a transaction with a fence")
			}
		})
	}
	p.wantRows(33, 0)
	p.wantRows(34, 2*2)
	p.wantRows(0, 2*2)
}

func TestBehindThePoolerASettingHoldsOnlyWhereItIs(t *testing.T) {
	for name, run := range protocols {
		t.Run(name, func(t *testing.T) {
			p, addr := behind(t, two, "", proxy.Options{})
			holder, other := p.connect(addr), p.connect(addr)
			for _, set := range []string{"SET wirefence.token = 'orders=34'", "SELECT set_config('wirefence.token', 'orders=34', false)"} {
				wantState(t, run(holder, set), "", set)
				home := holder.pid()
				wantState(t, run(holder, insert(34, "")), "", "on the server connection that has it")

				other.must("BEGIN")
				if got := other.pid(); got != home {
					t.Fatalf("the other client got %d, not %d, which was used last", got, home)
				}
				wantState(t, run(holder, insert(33, "")), "WF006", "on another")
				wantState(t, run(holder, "BEGIN"), "")
				wantState(t, run(holder, insert(33, "")), "WF006", "on another, in a block")
				wantState(t, run(holder, "ROLLBACK"), "")
				wantState(t, run(holder, "SELECT count(*) FROM jobs"), "", "a read")
				wantState(t, run(holder, insert(34, comment(34))), "", "a comment on another")
				if got := holder.pid(); got == home {
					t.Fatal("the holder was not moved")
				}
				other.must("COMMIT")
			}
			// Somebody else takes over. The holder's own setting, where it is found,
			// is as stale as it should be.
			p.exec("SELECT wirefence.seal('orders', 35, 'next')")
			for range 4 {
				if got := sqlstate(run(holder, insert(33, ""))); got != "WF001" && got != "WF006" {
					t.Errorf("a stale write got %q", got)
				}
			}
			p.wantRows(33, 0)
			p.wantRows(34, 4)
		})
	}
}

func TestBehindThePoolerForeignSettingsDontCount(t *testing.T) {
	p, addr := behind(t, one, "", proxy.Options{})
	strict := p.fencing(p.pooler(p.pg.Addr(), one), "", proxy.Options{UnfencedWrites: proxy.Reject})
	for _, at := range []string{addr, strict} {
		early := p.connect(at)
		p.connect(at).must("SET wirefence.token = 'orders=33'") // left to whoever comes next
		unfenced := map[string]string{addr: "", strict: "WF002"}[at]
		for name, c := range map[string]*client{"logged in before": early, "logged in behind": p.connect(at)} {
			for protocol, run := range protocols {
				wantState(t, run(c, insert(0, "")), unfenced, name, protocol, "unfenced")
				wantState(t, run(c, insert(34, comment(34))), "", name, protocol, "comment")
				c.must("BEGIN", "SET LOCAL wirefence.token = 'orders=34'")
				wantState(t, run(c, insert(34, "")), "", name, protocol, "SET LOCAL")
				c.must("COMMIT")
			}
		}
	}
	p.wantRows(0, 2*2)
	p.wantRows(34, 2*2*2*2)
}

// TestBehindThePoolerTransactionsKeepTheirBelief has one server connection, on
// which a foreign stale setting lies: whatever reads that instead of the client's
// own would be refused with WF001.
func TestBehindThePoolerTransactionsKeepTheirBelief(t *testing.T) {
	const current, stale = "wirefence.token = 'orders=34'", "wirefence.token = 'orders=33'"
	write := insert(34, "")
	for name, steps := range map[string][][2]string{
		"a setting is committed":         {{"BEGIN", ""}, {"SET " + current, ""}, {"COMMIT", ""}, {write, ""}},
		"a stale setting is committed":   {{"BEGIN", ""}, {"SET " + stale, ""}, {"COMMIT", ""}, {write, "WF001"}},
		"a setting is rolled back":       {{"BEGIN", ""}, {"SET " + stale, ""}, {"ROLLBACK", ""}, {write, ""}},
		"a setting fails":                {{"SET " + stale + "; SELECT 1/0", "22012"}, {write, ""}},
		"committed before a failure":     {{"SET " + stale + "; COMMIT; SELECT 1/0", "22012"}, {write, "WF001"}},
		"set behind a failure":           {{"BEGIN", ""}, {"SELECT 1/0", "22012"}, {"ROLLBACK; SET " + stale, ""}, {write, "WF001"}},
		"a failed block is committed":    {{"BEGIN", ""}, {"SET " + stale, ""}, {"SELECT 1/0", "22012"}, {"COMMIT", ""}, {write, ""}},
		"undone by a savepoint":          {{"BEGIN", ""}, {"SAVEPOINT s", ""}, {"SET " + current, ""}, {"ROLLBACK TO s", ""}, {write, "WF006"}},
		"a savepoint behind the setting": {{"BEGIN", ""}, {"SET LOCAL " + current, ""}, {"SAVEPOINT s", ""}, {"SELECT 1/0", "22012"}, {"ROLLBACK TO s", ""}, {write, ""}, {"COMMIT", ""}},
		"a stale one behind a failure":   {{"BEGIN", ""}, {"SET LOCAL " + stale, ""}, {"SAVEPOINT s", ""}, {"SELECT 1/0", "22012"}, {"ROLLBACK TO s", ""}, {write, "WF001"}},
		"a savepoint before both":        {{"BEGIN", ""}, {"SAVEPOINT s", ""}, {"SET LOCAL " + stale, ""}, {"SELECT 1/0", "22012"}, {"ROLLBACK TO s", ""}, {write, "WF006"}},
		"a savepoint is released":        {{"BEGIN", ""}, {"SAVEPOINT s", ""}, {"SET LOCAL " + stale, ""}, {"RELEASE s", ""}, {write, "WF001"}},
		"unclear after the savepoint":    {{"BEGIN", ""}, {"SAVEPOINT s", ""}, {"SET " + stale, ""}, {"ROLLBACK TO s", ""}, {"COMMIT", ""}, {write, "WF006"}, {"RESET wirefence.token", ""}, {write, ""}},
		"in one message":                 {{"SET LOCAL " + stale + "; " + write, "WF001"}, {"SET LOCAL " + current + "; " + write, ""}, {write, ""}},
		"a commit in one message":        {{"BEGIN; SET " + current + "; COMMIT; " + write, "WF006"}, {write, ""}},
		"taken back":                     {{"SET " + stale, ""}, {"RESET wirefence.token", ""}, {write, ""}},
		"all taken back":                 {{"SET " + stale, ""}, {"RESET ALL", ""}, {write, ""}},
		"discarded":                      {{"SET " + stale, ""}, {"DISCARD ALL", ""}, {write, ""}},
		"set to nothing":                 {{"SET " + stale, ""}, {"SET wirefence.token TO DEFAULT", ""}, {write, ""}},
		"by a function":                  {{"SELECT take_over(34)", "WF006"}, {write, ""}},
		"by a function in a block":       {{"BEGIN", ""}, {"SELECT take_over(34)", "WF006"}, {"ROLLBACK", ""}, {write, ""}},
		"by set_config in a query":       {{"SELECT set_config('wirefence.token', v, false) FROM (VALUES ('orders=34')) x(v)", "WF006"}, {write, ""}},
		"in DO":                          {{"DO $$ BEGIN SET wirefence.token = 'orders=34'; END $$", "WF006"}, {write, ""}},
		"by a function in DO":            {{"DO $$ BEGIN PERFORM take_over(34); END $$", "WF006"}, {write, ""}},
		"by a function in an INSERT":     {{"INSERT INTO t SELECT 1 FROM take_over(34)", "WF006"}, {write, ""}},
		"of another variable in a query": {{"SELECT set_config('app.who', v, false) FROM (VALUES ('a')) x(v)", ""}, {write, ""}},
		"by a prepared statement":        {{"PREPARE p AS SELECT set_config('wirefence.token', 'orders=34', false)", "WF006"}, {write, ""}},
		"as an escaped literal":          {{`SET wirefence.token = E'orders=34'`, "WF006"}, {write, ""}},
		"only mentioned":                 {{"SELECT current_setting('wirefence.token', true)", ""}, {"SHOW wirefence.token", ""}, {"SET application_name = E'a'", ""}, {write, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, addr := behind(t, one, "", proxy.Options{})
			for protocol, run := range protocols {
				p.connect(addr).must("SET wirefence.token = 'orders=33'")
				c := p.connect(addr)
				for _, step := range steps {
					if strings.Contains(step[0], "; ") {
						wantState(t, c.simple(step[0]), step[1], protocol, step[0])
						continue
					}
					wantState(t, run(c, step[0]), step[1], protocol, step[0])
				}
				c.hangUp()
			}
		})
	}
}

// TestBehindThePoolerAPipelineIsJudgedByItsOutcome sends everything before the
// first answer.
func TestBehindThePoolerAPipelineIsJudgedByItsOutcome(t *testing.T) {
	const stale = "wirefence.token = 'orders=33'"
	write := insert(33, "")
	for name, steps := range map[string][][2]string{
		"a setting":             {{"SET " + stale, ""}, {write, "WF001"}, {"RESET wirefence.token", ""}, {insert(0, ""), ""}},
		"a local setting":       {{"BEGIN", ""}, {"SET LOCAL " + stale, ""}, {write, "WF001"}, {"ROLLBACK", ""}, {insert(0, ""), ""}},
		"a committed setting":   {{"BEGIN", ""}, {"SET " + stale, ""}, {"COMMIT", ""}, {write, "WF001"}},
		"a savepoint before it": {{"BEGIN", ""}, {"SAVEPOINT s", ""}, {"SET LOCAL " + stale, ""}, {"ROLLBACK TO s", ""}, {write, "WF006"}},
		"a failure":             {{"BEGIN", ""}, {"SET LOCAL " + stale, ""}, {"SAVEPOINT s", ""}, {"SELECT 1/0", "22012"}, {"ROLLBACK TO s", ""}, {write, "WF006"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, addr := behind(t, one, "", proxy.Options{})
			for _, extended := range []bool{false, true} {
				p.connect(addr).must("SET wirefence.token = 'orders=35'") // somebody else's
				c := p.connect(addr)
				for _, step := range steps {
					if extended {
						c.send(&pgproto3.Parse{Query: step[0]}, &pgproto3.Bind{}, &pgproto3.Execute{}, &pgproto3.Sync{})
					} else {
						c.send(&pgproto3.Query{String: step[0]})
					}
				}
				c.flush()
				for _, step := range steps {
					wantState(t, c.answer(), step[1], step[0], "extended:", extended)
				}
				_ = c.Conn().Close() // what is open ends with it
			}
			p.wantRows(33, 0)
		})
	}
}
