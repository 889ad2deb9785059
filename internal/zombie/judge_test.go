package zombie

import (
	"fmt"
	"strings"
	"testing"
)

func row(pairs ...string) Row {
	r := Row{}
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		r[name] = &value
		if value == "null" {
			r[name] = nil
		}
	}
	return r
}

func told(all []Write) string {
	var lines []string
	for _, w := range all {
		lines = append(lines, fmt.Sprintf("%s %s: %v -> %v", w.Operation, w.Key, w.Before, w.After))
	}
	return strings.Join(lines, "; ")
}

var (
	keyed = table{Name: "t", Key: []string{"id"}}
	bare  = table{Name: "t"}
)

func copyOf(t table, all ...Row) copied {
	c := copied{map[string]Row{}, map[string][]Row{}}
	for _, r := range all {
		c.add(t, r)
	}
	return c
}

func TestStateKnowsTheRowBefore(t *testing.T) {
	t.Parallel()
	s := newState([]table{keyed}, map[string]copied{"t": copyOf(keyed, row("id=1", "v=a", "w=big"))})
	var all []Write
	for _, c := range []change{
		{operation: opUpdate, new: row("id=1", "v=b")},                      // w wasn't changed, and isn't told
		{operation: opUpdate, new: row("id=1", "v=b", "w=big")},             // the same values
		{operation: opUpdate, old: row("id=1"), new: row("id=2", "v=null")}, // another key
		{operation: opDelete, old: row("id=2")},
		{operation: opInsert, new: row("id=2", "v=c")},
		{operation: opTruncate},
		{operation: opUpdate, new: row("id=2", "v=d")}, // of a row that isn't known
	} {
		c.tables = []string{"t"}
		all = append(all, s.apply(c))
	}
	want := "UPDATE id=1: id=1 v='a' w='big' -> id=1 v='b' w='big'; UPDATE id=1: id=1 v='b' w='big' -> id=1 v='b' w='big'; " +
		"UPDATE id=2: id=1 v='b' w='big' -> id=2 v=null w='big'; DELETE id=2: id=2 v=null w='big' -> ; INSERT id=2:  -> id=2 v='c'; " +
		"TRUNCATE :  -> ; UPDATE id=2:  -> id=2 v='d'"
	if got := told(all); got != want {
		t.Errorf("\n%s\nnot\n%s", got, want)
	}
}

func TestDifferences(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		t             table
		before, after []Row
		want          string
	}{
		{keyed, []Row{row("id=1", "v=a"), row("id=2", "v=b"), row("id=3", "v=c")}, []Row{row("id=2", "v=x"), row("id=3", "v=c"), row("id=4", "v=null")},
			"DELETE id=1: id=1 v='a' -> ; UPDATE id=2: id=2 v='b' -> id=2 v='x'; INSERT id=4:  -> id=4 v=null"},
		{bare, []Row{row("v=a"), row("v=a"), row("v=b")}, []Row{row("v=a"), row("v=c"), row("v=c")},
			"DELETE : v='a' -> ; DELETE : v='b' -> ; INSERT :  -> v='c'; INSERT :  -> v='c'"},
		{keyed, []Row{row("id=1", "v=a")}, []Row{row("id=1", "v=a")}, ""},
	} {
		if got := told(differences(c.t, copyOf(c.t, c.before...), copyOf(c.t, c.after...))); got != c.want {
			t.Errorf("\n%s\nnot\n%s", got, c.want)
		}
	}
}

// Of the changes in the second's turn, those of transactions that the first had open are the
// first's; of those afterwards, all are but those that the frozen second had open.
func TestWhoseChangesTheyAre(t *testing.T) {
	t.Parallel()
	one := func(xid uint32, value string) change {
		return change{transaction: xid, tables: []string{"t"}, operation: opUpdate, new: row("id=1", "v="+value)}
	}
	p := &play{
		database: &database{tables: []table{keyed}, slot: "s"}, report: &Report{},
		firsts: map[uint32]bool{10: true}, seconds: map[uint32]bool{20: true}, base: map[string]copied{"t": copyOf(keyed, row("id=1", "v=0"))},
		turn: []change{one(19, "second"), one(10, "late"), one(21, "second")}, after: []change{one(20, "second"), one(22, "zombie")},
	}
	p.tables[0].Logged = true
	p.collect()
	if got, want := told(p.report.Writes), "UPDATE id=1: id=1 v='second' -> id=1 v='late'; UPDATE id=1: id=1 v='second' -> id=1 v='zombie'"; got != want {
		t.Errorf("\n%s\nnot\n%s", got, want)
	}
}
