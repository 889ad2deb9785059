package zombie

import (
	"fmt"
	"testing"
	"time"
)

// Statements of two connections may have been in flight at once if the second came within a millisecond, or
// ahead of the first one's answer.
func TestPairs(t *testing.T) {
	t.Parallel()
	at := func(connection, at, answered int) *Message {
		return &Message{Connection: connection, Kind: queries, starts: true, at: time.Duration(at) * 100 * time.Microsecond, answered: time.Duration(answered) * 100 * time.Microsecond}
	}
	for want, messages := range map[string][]*Message{
		"[{1 2 2}]":         {at(1, 0, 4), at(2, 9, 0)},
		"[{1 3 4} {3 4 4}]": {at(1, 0, 50), {Connection: 2, Kind: connects}, at(2, 40, 45), at(1, 44, 60)},
		"[]":                {at(1, 0, 4), at(2, 11, 15), at(2, 16, 17)},
	} {
		if got := fmt.Sprint(pairs(messages)); got != want {
			t.Errorf("%s, not %s", got, want)
		}
	}
}

// A message is held back where it comes again, whatever other connections send ahead of it. Of two statements in
// flight at once one is held back from the earlier one's number on, unless both have the same pattern.
func TestHolding(t *testing.T) {
	t.Parallel()
	of := func(connection int, sql string) *Message {
		return &Message{Connection: connection, Kind: queries, SQL: sql, starts: true}
	}
	one, other, end := of(1, "UPDATE t SET n = 1"), of(2, "UPDATE t SET n = 2"), of(1, "COMMIT")
	for _, c := range []struct {
		messages []*Message
		at       int
		swapped  bool
		want     hold
	}{
		{[]*Message{one, other, end}, 2, false, hold{2, one.pattern(), false}},
		{[]*Message{one, other, end}, 1, false, hold{1, one.pattern(), false}},
		{[]*Message{one, other, end}, 1, true, hold{1, one.pattern(), true}},
		{[]*Message{one, of(2, "SELECT 1"), end}, 2, false, hold{1, "querySELECT ?", true}},
		{[]*Message{one, of(1, "SELECT 1"), end}, 2, false, hold{1, "querySELECT ?", false}},
	} {
		if got := holding(c.messages, c.at, c.swapped); got != c.want {
			t.Errorf("%v: %v", c, got)
		}
	}
	for _, c := range []struct {
		hold hold
		want []bool // of each message
	}{
		{hold{}, []bool{false, false, false, false}},
		{hold{number: 2}, []bool{false, true, true, true}},
		{hold{2, one.pattern(), false}, []bool{false, false, true, false}},
		{hold{2, one.pattern(), true}, []bool{false, true, true, true}},
	} {
		all := []*Message{one, end, other, end}
		for i, want := range c.want {
			if got := c.hold.due(all[:i+1]); got != want {
				t.Errorf("%v, %d: %v", c.hold, i, got)
			}
		}
	}
}
