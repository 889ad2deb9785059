package session

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

func query(sql string) part { return part{wire.AppendQuery(nil, sql), "Query " + sql} }

func run(sql string) part {
	return part{wire.AppendExecute(wire.AppendBind(wire.AppendParse(nil, "", sql), "", ""), ""), "Parse, Bind, Execute " + sql}
}

// setsByCall begins a FunctionCall of set_config.
const setsByCall = "\x00\x00\x08\x1e"

var (
	sync_    = part{wire.AppendSync(nil), "Sync"}
	fastCall = part{message(wire.FunctionCall, "\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00"), "FunctionCall"}
	callSets = part{message(wire.FunctionCall, setsByCall+"\x00\x00\x00\x01\x00\x00\x00\x0fwirefence.token\x00\x00"), "FunctionCall of set_config"}
	copyDone = part{message(wire.CopyDone, ""), "CopyDone"}
	endless  = part{message(wire.Query, "SELECT 1"), "Query without an end"}
)

// TestTrafficThatOnceWentWrong keeps what the fuzzing has found.
func TestTrafficThatOnceWentWrong(t *testing.T) {
	const fenced, stale = " /*wirefence.token='a=1'*/", "a=3"
	there := terms{enforced: true, schema: true}
	for _, c := range []struct {
		name   string
		token  string
		policy terms
		mode   Mode
		major  int
		script []part
	}{
		{name: "a stray CopyDone behind a function call held the next query for ever", token: "a=1", policy: there, major: 15,
			script: []part{fastCall, sync_, copyDone, query("SELECT 1")}},
		{name: "the answer to a Sync overtook the one to a function call", policy: terms{enforced: true, schema: true, unlockers: true}, major: 15,
			script: []part{run("UPDATE t SET a = 1 RETURNING a"), fastCall, sync_}},
		{name: "a function call behind a COPY that had failed was committed too late", token: "a=1", policy: there, major: 18,
			script: []part{query("COPY t FROM STDIN"), {message(wire.CopyData, "bad"), "CopyData bad"}, fastCall}},
		{name: "a function call behind a COMMIT of the same batch ran in no block", token: stale, policy: there, major: 15,
			script: []part{query("BEGIN"), run("COMMIT"), fastCall}},
		{name: "a function call behind a BEGIN of the same batch ended the client's block", token: "a=1", policy: there, major: 15,
			script: []part{run("BEGIN"), fastCall, query("INSERT INTO t VALUES (1)")}},
		{name: "function calls in a block where the schema isn't", policy: terms{enforced: true}, major: 14,
			script: []part{query("BEGIN"), fastCall, fastCall}},
		{name: "an unknown portal behind a function call where the schema isn't", policy: terms{enforced: true}, major: 16,
			script: []part{fastCall, {wire.AppendExecute(nil, "none"), "Execute none"}, sync_}},
		{name: "a Query without an end left the batch's check in force", token: "a=1", policy: there, major: 14,
			script: []part{run("INSERT INTO t VALUES (1)"), endless, run("INSERT INTO t VALUES (1)"), sync_}},
		{name: "a procedure in the middle of a batch committed behind the batch's check", token: "a=1", policy: there, major: 15,
			script: []part{run("INSERT INTO t VALUES (1)"), query("CALL p()")}},
		{name: "a simple query behind a CALL left the proxy's block open", token: "a=1", policy: there, major: 15,
			script: []part{run("CALL p()"), query("SELECT 1"), sync_}},
		{name: "the fence of a statement that EXECUTE runs covered another's", token: stale, policy: there, major: 16,
			script: []part{query("PREPARE p AS SELECT 1" + fenced), query("EXECUTE p; INSERT INTO t VALUES (1)")}},
		{name: "the same, where the variable is set in the same text", policy: there, major: 14,
			script: []part{query("PREPARE p AS SELECT 1" + fenced), query("SET wirefence.token = 'a=3'; INSERT INTO t VALUES (1); EXECUTE p")}},
		{name: "a PREPARE that failed took the fence of the first from it", policy: there, major: 14,
			script: []part{query("PREPARE p AS INSERT INTO t VALUES (1)" + fenced), query("PREPARE p AS SELECT 1"), query("EXECUTE p"),
				{wire.AppendExecute(wire.AppendBind(nil, "", "p"), ""), "Bind p, Execute"}}},
		{name: "shadow mode refused a backslash behind a setting", token: "a=1", policy: terms{schema: true}, mode: Shadow, major: 15,
			script: []part{run("SET standard_conforming_strings = on"), run(`SELECT '\'`), sync_}},
		{name: "shadow mode failed a COMMIT of a block that had failed", policy: terms{schema: true}, mode: Shadow, major: 14,
			script: []part{query("BEGIN; DECLARE h CURSOR WITH HOLD FOR SELECT write()"), query("SELECT fails"), run("COMMIT" + fenced), sync_}},
		{name: "a cursor over a write, declared without a fence, fetched with one", policy: there, major: 15,
			script: []part{query("BEGIN; DECLARE c CURSOR FOR SELECT write()"), query("FETCH c /*wirefence.token='a=3'*/")}},
		{name: "a cursor over a write, declared when the variable was in doubt", policy: terms{enforced: true, schema: true, unlockers: true}, major: 14,
			script: []part{query("BEGIN"), fastCall, query("DECLARE h CURSOR WITH HOLD FOR SELECT write()"), query("COMMIT" + fenced)}},
		{name: "a COMMIT of a block that has failed, with a cursor over a write", policy: terms{enforced: true, schema: true, unlockers: true}, major: 14,
			script: []part{query("BEGIN"), query("DECLARE c CURSOR FOR SELECT write()"), query("SELECT fails"), query("COMMIT; BEGIN"), query("SELECT fails"), run("COMMIT AND CHAIN"), sync_}},
		{name: "the answer to a Close took away what was PREPAREd behind it", policy: there, major: 15,
			script: []part{{message(wire.Close, "Sp\x00"), "Close p"}, query("PREPARE p AS INSERT INTO t VALUES (1) /*wirefence.token='b=1'*/"), query("EXECUTE p" + fenced)}},
		{name: "the answer to a DEALLOCATE did", policy: there, major: 15,
			script: []part{query("PREPARE p AS SELECT 1"), query("DEALLOCATE p"), query("PREPARE p AS INSERT INTO t VALUES (1) /*wirefence.token='b=1'*/"), query("EXECUTE p" + fenced)}},
		{name: "a PREPARE behind a DISCARD ALL of the same batch passed as the Parse before it", token: stale, policy: there, major: 14,
			script: []part{{wire.AppendParse(nil, "p", "RELEASE s"), "Parse p RELEASE s"}, run("DISCARD ALL"), run("PREPARE p AS INSERT INTO t VALUES (1)"),
				{wire.AppendExecute(wire.AppendBind(nil, "", "p"), ""), "Bind p, Execute"}, sync_}},
		{name: "a text sent behind a ROLLBACK was read by the setting that it took back", token: stale, policy: there, major: 17,
			script: []part{query("SET standard_conforming_strings = off; BEGIN"), query("ROLLBACK; UPDATE t SET a = 1 RETURNING a"), query(ambiguous)}},
		{name: "a Parse that failed was taken for what a Query behind its Sync EXECUTEs", policy: there, major: 14,
			script: []part{{wire.AppendParse(nil, "p", "INSERT INTO t VALUES (1) /*wirefence.token='b=1'*/"), "Parse p, b=1"},
				{wire.AppendParse(nil, "p", "SELECT fails"), "Parse p again"}, sync_, query("EXECUTE p")}},
		{name: "a value that was asked for in a transaction counted behind its ROLLBACK", token: stale, policy: there, major: 17,
			script: []part{query("BEGIN"), query("SET wirefence.token = ''"), query("ROLLBACK; CALL p()")}},
		{name: "the answer to a DEALLOCATE ALL did so in its own text", policy: there, major: 16,
			script: []part{query("DEALLOCATE ALL; PREPARE p AS INSERT INTO t VALUES (1)" + fenced), query("EXECUTE p /*wirefence.token='b=1'*/")}},
		{name: "shadow mode put a check into a Query that a setting of its batch changes", token: "a=1", policy: terms{schema: true}, mode: Shadow, major: 15,
			script: []part{run("SET standard_conforming_strings = off"), query(ambiguous + "; INSERT INTO t VALUES (1)")}},
		{name: "such a Query was read by the old setting", token: stale, policy: there, major: 15,
			script: []part{run("SET standard_conforming_strings = off"), query(ambiguous + "; INSERT INTO t VALUES (1)")}},
		{name: "a login whose question failed forgot what RESET leads to", token: stale, policy: terms{enforced: true, schema: true, failing: true}, major: 14,
			script: []part{query("SET wirefence.token = ''"), query("SHOW x"), query("SHOW x"), run("RESET wirefence.token"), fastCall}},
		{name: "a Query that was held in a batch had the batch ended by a question", token: "a=1", policy: terms{enforced: true}, major: 14,
			script: []part{query("SHOW x"), run("SET LOCAL wirefence.token = ''"), query("UPDATE t SET a = 1 RETURNING a; BEGIN")}},
		{name: "a Query in a batch that sets how it is read was read by what came before", policy: terms{enforced: true, schema: true, required: true}, major: 14,
			script: []part{query("SET standard_conforming_strings = off"), run("SET standard_conforming_strings = on"), query(ambiguous + "; BEGIN")}},
		{name: "an unlock that was PREPAREd while nothing was held released a hold", policy: there, major: 17,
			script: []part{query("PREPARE p AS " + unlocking), {wire.AppendParse(nil, "", "VACUUM t"+fenced), "Parse VACUUM"}, sync_, run("EXECUTE p" + fenced),
				{wire.AppendExecute(wire.AppendBind(nil, "", ""), ""), "Bind, Execute"}, sync_}},
		{name: "a check that was parsed twice, once in a failed block, was bound where it was gone", policy: terms{enforced: true, schema: true, required: true}, major: 14,
			script: []part{run("SELECT 1"), sync_, query("BEGIN"), query("DEALLOCATE ALL"), run("SELECT 1"), query("SELECT fails"), run("SELECT 1"), sync_, run("SELECT 1"), sync_}},
		{name: "a Parse that failed since SQL had given its name was taken for what it says", policy: there, major: 18,
			script: []part{query("PREPARE p AS INSERT INTO t VALUES (1)"), {wire.AppendParse(nil, "p", "COMMIT"), "Parse p COMMIT"}, sync_, callSets,
				{wire.AppendExecute(wire.AppendBind(nil, "", "p"), ""), "Bind p, Execute"}, sync_}},
		{name: "a DO released the hold that covered it", token: "a=2", policy: there, major: 15,
			script: []part{query("DO 'perform pg_advisory_unlock_all(), write()'")}},
		{name: "DISCARD ALL behind a batch got a check ahead", token: "a=1", policy: there, major: 15,
			script: []part{run("SELECT 1"), sync_, query("DISCARD ALL"), run("SELECT 1 /*wirefence.token='a=2'*/"), sync_, run("DISCARD ALL"), sync_}},
		{name: "an answer about the variable outlived what changed it", policy: terms{enforced: true, schema: true, unlockers: true}, major: 15,
			script: []part{run("DO 'perform set_config(''wirefence.token'', ''b=1'', false), write()'"), {wire.AppendExecute(wire.AppendBind(nil, "c", ""), "c"), "Bind c, Execute"}, sync_}},
		{name: "shadow mode made a transaction READ ONLY where the schema isn't", policy: terms{required: true}, mode: Shadow, major: 17,
			script: []part{run("SELECT write()"), sync_, query("SELECT write()")}},
		{name: "the error of a check's Parse was swallowed", policy: terms{enforced: true, schema: true, unlockers: true}, major: 15,
			script: []part{run("BEGIN"), query("SELECT two /*wirefence.token='a='*/"), {wire.AppendExecute(nil, "c"), "Execute c"}, sync_}},
		{name: "that the variable was empty covered a CALL with a comment in the same batch", policy: terms{enforced: true, schema: true, snapshots: true}, major: 16,
			script: []part{query("SELECT two; PREPARE p AS INSERT INTO t SELECT set_config('wirefence.token', 'a=1', false)"), run("CALL p()"),
				run("DO 'perform set_config(''wirefence.token'', ''b=1'', false), write()'" + " /*wirefence.token='a=2'*/"), sync_}},
		{name: "a hold that was given back behind COMMIT AND CHAIN took the snapshot ahead of SET TRANSACTION", token: "a=1", policy: there, major: 14,
			script: []part{fastCall, query("BEGIN; SET LOCAL wirefence.token = ''; COMMIT AND CHAIN"),
				query("SET LOCAL wirefence.token = ''; SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")}},
		{name: "the same, in messages of their own", token: "a=1", policy: there, major: 18,
			script: []part{fastCall, query("BEGIN; SET LOCAL wirefence.token = ''; COMMIT AND CHAIN"),
				query("SET LOCAL wirefence.token = ''"), query("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")}},
		{name: "a hold that could not be given back behind COMMIT AND CHAIN aborted the transaction without its error", token: "a=1",
			policy: terms{enforced: true, schema: true, failing: true}, major: 15,
			script: []part{query("VACUUM t"), query("BEGIN; SET LOCAL wirefence.token = ''; COMMIT AND CHAIN"), query("SELECT 1"), query("COMMIT")}},
		{name: "the same, ahead of a batch", token: "a=1", policy: terms{enforced: true, schema: true, failing: true}, major: 18,
			script: []part{query("VACUUM t"), query("BEGIN; SET LOCAL wirefence.token = ''; COMMIT AND CHAIN"), run("SELECT 1"), sync_, query("COMMIT")}},
		{name: "the same, ahead of COMMIT", token: "a=1", policy: terms{enforced: true, schema: true, failing: true}, major: 17,
			script: []part{query("VACUUM t"), query("BEGIN; SET LOCAL wirefence.token = ''; COMMIT AND CHAIN"), query("COMMIT")}},
		{name: "the same, ahead of ROLLBACK", token: "a=1", policy: terms{enforced: true, schema: true, failing: true}, major: 17,
			script: []part{query("VACUUM t"), query("BEGIN; SET LOCAL wirefence.token = ''; COMMIT AND CHAIN"), query("ROLLBACK")}},
		{name: "a SAVEPOINT that was only parsed had a check ahead, which took the snapshot ahead of SET TRANSACTION", token: "a=1", policy: there, major: 15,
			script: []part{{message(wire.Close, "Sp\x00"), "Close p"}, {wire.AppendParse(nil, "p", "SAVEPOINT s"), "Parse p SAVEPOINT s"},
				run("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"), sync_}},
		{name: "the same, in a block", token: "a=1", policy: there, major: 15,
			script: []part{query("BEGIN"), {wire.AppendParse(nil, "p", "SAVEPOINT s"), "Parse p SAVEPOINT s"},
				run("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"), sync_}},
		{name: "a text that failed ahead of its COMMIT left a trigger at COMMIT without a check", policy: there, major: 16,
			script: []part{query("BEGIN"), query(deferring), query("SET wirefence.token = 'a=3'"), query("SAVEPOINT s /*wirefence.token='b=1'*/"),
				query("SET wirefence.token = 'a=1'; SELECT 1; ROLLBACK TO s; COMMIT"), query("ROLLBACK TO s"), query("COMMIT")}},
		{name: "an EXECUTE in the text of its PREPARE set the variable unseen", policy: there, major: 14,
			script: []part{query("PREPARE p AS INSERT INTO t SELECT set_config('wirefence.token', 'a=1', false); EXECUTE p")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(100) {
				s := &setup{mode: c.mode, policy: c.policy, major: c.major, token: c.token, hold: 50 * time.Millisecond, script: append(c.script, ending()...)}
				if seed > 0 {
					s.travel = randomInput(seed)
				}
				if wrong := s.judge(); wrong != "" {
					t.Fatalf("%s\n%s", wrong, s)
				}
			}
		})
	}
}

// randomInput is an input for judgeTraffic.
func randomInput(seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, seed))
	input := make([]byte, 100+r.IntN(400))
	for i := range input {
		input[i] = byte(r.Uint32())
	}
	return input
}

// TestTraffic plays many sessions, the same each time.
func TestTraffic(t *testing.T) {
	const each = 500
	for part := range uint64(8) {
		t.Run(fmt.Sprint(part), func(t *testing.T) {
			t.Parallel()
			for seed := part * each; seed < (part+1)*each; seed++ {
				judgeTraffic(t, randomInput(seed))
			}
		})
	}
}

// FuzzTraffic plays a client against a model of PostgreSQL, with the session between
// them and the bytes cut and interleaved in every way, while time passes and takeovers
// come. Nothing that carries a fence runs, and nothing that was written by one commits,
// but under the lock of a check or a hold of that fence; what reaches the server is
// well framed; the client sees what it would see directly, behind a refusal, too; and
// no session hangs, loses its step, holds for ever, or remembers more than it was sent.
//
// Evidence: I2, I4, I5, I6
func FuzzTraffic(f *testing.F) {
	for seed := range uint64(64) {
		f.Add(randomInput(seed))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		if len(input) < 4096 {
			judgeTraffic(t, input)
		}
	})
}
