package policy

import (
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/wirefence/wirefence/proxy/internal/sqltext"
)

// texts is what the statements of drawn messages are made of.
var texts = []string{
	insert, insert, "SELECT 1", "BEGIN", "COMMIT", "ROLLBACK", "ROLLBACK TO s", "RELEASE s", "SAVEPOINT s", "LOCK TABLE t", "SET TRANSACTION READ ONLY",
	"SET TRANSACTION SNAPSHOT 'x'", set, "RESET ALL", "SET x = 1", "SHOW x", unlock, "DISCARD ALL", "CALL p()", "VACUUM", "DO 'perform pg_advisory_unlock(1)'",
	"PREPARE p AS SELECT 1", "EXECUTE p", "FETCH c", "PREPARE TRANSACTION 'x'", "COMMIT PREPARED 'x'",
}

func drawCarrier(t *rapid.T, name string) Carrier {
	return rapid.SampledFrom([]Carrier{none, variable, stamp, {Variable: true, Stamp: "lease=1"}, comment, other}).Draw(t, name)
}

func drawFacts(t *rapid.T) *Facts {
	yes := func(name string) bool { return rapid.Bool().Draw(t, name) }
	f := &Facts{
		Required: yes("required"), Schema: rapid.IntRange(0, 3).Draw(t, "schema") > 0, Pooled: rapid.IntRange(0, 7).Draw(t, "pooled") == 7,
		CallsFunctions: yes("calls"),
		Variable:       yes("variable"), Stamp: rapid.SampledFrom([]string{"", "", "lease=1"}).Draw(t, "stamp"),
		Outstanding: rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "outstanding"), Block: Block(rapid.IntRange(1, 3).Draw(t, "block")),
		Transaction: Transaction{Fenced: yes("fenced"), FencedBy: drawCarrier(t, "fenced by").Comment, FenceChanged: yes("changed"), Varied: yes("varied")},
		Last:        drawCarrier(t, "last"),
		Answer:      Answer(rapid.IntRange(0, int(Fails)).Draw(t, "answer")), About: drawCarrier(t, "about"),
		Shadow: rapid.IntRange(0, 7).Draw(t, "shadow") == 7,
	}
	f.Required = f.Required || f.Stamp != "" // where there is a lease, a fence is required
	f.Hold = Hold{State: HoldState(rapid.IntRange(0, 4).Draw(t, "hold")), By: drawCarrier(t, "held"), Over: yes("over")}
	if f.Pooled {
		f.Hold = Hold{} // there a session never holds
	}
	f.CanHold = f.Schema && !f.Pooled && !f.Shadow && yes("holds")
	if yes("batch") {
		f.Batch = Batch{
			Open: yes("open"), Ran: yes("ran"), Block: Block(rapid.IntRange(0, 3).Draw(t, "batch's block")),
			Checked: yes("checked"), TakenHere: yes("took"), By: drawCarrier(t, "by"),
		}
		f.Batch.Taken = f.Batch.TakenHere && yes("taken")
	}
	f.HoldNeedsExchange = yes("apart")
	f.Quiet = f.Outstanding == 0 && !f.Batch.Open && !f.Hold.State.Asked()
	return f
}

func drawMessage(t *rapid.T) *Message {
	m := &Message{Kind: Kind(rapid.IntRange(0, int(OtherFirst)).Draw(t, "kind"))}
	most := 1
	switch m.Kind {
	case Query:
		most = 5
	case FunctionCall, OtherFirst:
		return m
	}
	text := ""
	for _, sql := range rapid.SliceOfN(rapid.SampledFrom(texts), 0, most).Draw(t, "text") {
		text += sql + ";"
	}
	m.Statements = saying(text).Statements
	m.BySettings = m.Kind == Query && rapid.IntRange(0, 9).Draw(t, "by settings") == 9
	m.Fence = rapid.SampledFrom([]string{"", "", comment.Comment, other.Comment}).Draw(t, "fence")
	return m
}

func TestDecideProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, m := drawFacts(t), drawMessage(t)
		facts, message := *f, *m
		message.Statements = slices.Clone(m.Statements)
		a := Decide(f, m, nil)
		a.Inserts = slices.Clone(a.Inserts)
		if again := Decide(f, m, make([]Insert, 1, 8)); outcome(a) != outcome(again) || a.By != again.By {
			t.Fatalf("%s, and then %s", outcome(a), outcome(again))
		}
		if !reflect.DeepEqual(*f, facts) || !reflect.DeepEqual(*m, message) {
			t.Fatal("it changes what it judges by")
		}
		switch a.Do {
		case Refuse:
			if a.Refusal.State == "" {
				t.Fatal("a refusal without an SQLSTATE")
			}
		case Wait:
			if f.Outstanding == 0 && !f.Hold.State.Asked() {
				t.Fatal("it waits for nothing")
			}
		case Take, GiveBack, Observe:
			if !f.Quiet || f.Block != NoBlock {
				t.Fatalf("%s, not in a quiet moment", outcome(a))
			}
			if a.Do == Take {
				judgeTake(t, f, a)
			}
		case Ask:
			if !f.Quiet {
				t.Fatal("it asks, not in a quiet moment")
			}
		default:
			if len(a.Inserts) > 0 && a.Inserts[0].Holds {
				judgeTake(t, f, a)
				judgeJoint(t, f, m, a)
			}
			judgeForward(t, f, m, a)
		}
	})
}

// judgeTake checks that a hold is asked for in a quiet moment, and may be had.
func judgeTake(t *rapid.T, f *Facts, a Action) {
	if !f.CanHold || !a.By.Carries() || f.answer(a.By) != NoAnswer || !f.Quiet || f.Block != NoBlock {
		t.Fatal("it takes a hold that can't be had")
	}
}

// judgeJoint checks that nothing in a message that asks for the hold itself ends what a
// hold or a check covers.
func judgeJoint(t *rapid.T, f *Facts, m *Message, a Action) {
	if f.HoldNeedsExchange || m.Kind == OtherFirst || m.Kind == FunctionCall || len(a.Inserts) != 1 || a.Inserts[0].Before != 0 {
		t.Fatalf("it takes a hold with %s", outcome(a))
	}
	for _, st := range m.Statements {
		if st.Class != sqltext.Ordinary || st.Flags.Has(sqltext.Unlocks) || a.By.Comment == "" && st.Flags&(sqltext.SetsVariable|sqltext.Resets) != 0 {
			t.Fatalf("it takes a hold ahead of %+v", m)
		}
	}
}

// judgeForward checks what a forwarded message runs under.
func judgeForward(t *rapid.T, f *Facts, m *Message, a Action) {
	byPlace := func(x, y Insert) int { return x.Before - y.Before }
	if !slices.IsSortedFunc(a.Inserts, byPlace) || m.Kind == OtherFirst && len(a.Inserts) > 0 {
		t.Fatalf("checks at %v", a.Inserts)
	}
	checks := func(i int) bool {
		return slices.ContainsFunc(a.Inserts, func(in Insert) bool {
			return in.Before == i && (in.By != f.Hold.By || in.By == a.By || f.Hold.State == NoHold)
		})
	}
	by, setter := f.carrier(m)
	carries := by.Carries()
	if f.Shadow || !carries && !f.Required && setter < 0 {
		return
	}
	if cleans(m) && f.CurrentBlock() == NoBlock {
		return // what pools send between two users
	}
	counts, failed := f.HoldCovers(a.By), f.CurrentBlock() == FailedBlock
	if f.standsAlone(m) && f.CurrentBlock() != InBlock && !failed {
		answer := f.answer(by)
		ahead := f.Batch.Open && m.Kind != Execute && m.Kind != Query && m.Kind != FunctionCall // its Execute is judged
		checked := ahead && (len(a.Inserts) > 0 || f.Batch.Checked && f.Batch.By == a.By)
		if !counts && !checked && (carries && answer != Empty && answer != Observed || f.Required && answer != Observed) {
			t.Fatalf("%+v is forwarded with nothing to cover it", m)
		}
		return
	}
	if m.Kind == FunctionCall || m.Kind == OtherFirst {
		return
	}
	runs := m.Kind == Query || m.Kind == Execute
	inBatch := f.Batch.Open && m.Kind != Query && f.Batch.By == a.By
	checked := inBatch && f.Batch.Checked
	taken := inBatch && f.Batch.Taken
	fenced := carries && setter < 0 || f.Required
	under := f.Fenced && !f.FenceChanged // what COMMIT runs under
	if a.By.Comment != "" {
		under = f.FencedBy == a.By.Comment
	}
	under = under || checked
	locked, varied := false, f.Varied // a LOCK has its check behind it
	for i, st := range m.Statements {
		commits := st.Class == sqltext.Ends && st.Flags.Has(sqltext.Commits)
		if commits && fenced && runs && !failed && !under && !counts && !taken && !checks(i) && (i > 0 || f.CurrentBlock() == InBlock) {
			t.Fatalf("COMMIT at %d runs deferred triggers under nothing", i)
		}
		if checks(i) {
			checked, under = true, true
			if st.Class.Controls() && !commits && !locked || st.Class == sqltext.Free && !(counts || taken) {
				t.Fatalf("a check ahead of statement %d", i)
			}
			locked = false
		}
		switch {
		case st.Class == sqltext.Ends || st.Class == sqltext.Undoes:
			checked, taken, failed = false, false, false
		case st.Class.Controls():
			checked, taken = false, false
		case st.Class == sqltext.Savepoint:
			if runs && taken && !checked && !failed && f.CurrentBlock() != NoBlock {
				t.Fatalf("SAVEPOINT %d behind a hold or a check, with no check of its own", i)
			}
		case st.Class == sqltext.Ordinary || st.Class == sqltext.Alone:
			if fenced && !failed && !checked && !counts && !taken {
				t.Fatalf("statement %d runs under nothing", i)
			}
		}
		changes := st.Flags&(sqltext.SetsVariable|sqltext.Resets) != 0 && a.By.Comment == ""
		if st.Flags.Has(sqltext.Unlocks) || st.Flags.Has(sqltext.Imports) || changes {
			counts, taken = false, false
		}
		if changes || st.Flags.Has(sqltext.Imports) {
			checked = false
		}
		locked = locked || st.Class == sqltext.Lock
		under = under && !changes
		varied = varied || changes
		under = under && !(st.Class == sqltext.Undoes && (varied || a.By.Comment != ""))
		fenced = fenced || st.Flags.Has(sqltext.SetsVariable) && a.By.Comment == ""
		if f.Pooled && st.Class == sqltext.Ends { // with SET LOCAL
			fenced = f.Required || a.By.Comment+a.By.Stamp != ""
		}
	}
}
