package ledger

import (
	"fmt"
	"strings"
	"testing"
)

// find returns what Find says of a name, in words.
func find(n *Names[string], name string, batch uint32) string {
	what, ok, sure := n.Find([]byte(name), batch)
	text := "nothing"
	if ok {
		text = what
	}
	if !sure {
		text += ", perhaps"
	}
	return text
}

func TestNames(t *testing.T) {
	sent := func(name string, batch uint32, what string) func(*Names[string]) {
		return func(n *Names[string]) { n.Sent([]byte(name), batch, what) }
	}
	answered := func(name string) func(*Names[string]) {
		return func(n *Names[string]) { n.Answered(name, true) }
	}
	failed := func(name string) func(*Names[string]) {
		return func(n *Names[string]) { n.Answered(name, false) }
	}
	closed := func(name string) func(*Names[string]) {
		return func(n *Names[string]) { n.Closed(name) }
	}
	cleared := func(n *Names[string]) { n.Cleared() }
	long := strings.Repeat("n", maxName)
	type steps []func(*Names[string])
	for name, c := range map[string]struct {
		steps steps
		name  string
		batch uint32
		want  string
	}{
		"no name was given":                     {steps{}, "p", 1, "nothing"},
		"nor this one":                          {steps{sent("q", 1, "a"), answered("q")}, "p", 1, "nothing"},
		"confirmed":                             {steps{sent("p", 1, "a"), answered("p")}, "p", 7, "a"},
		"confirmed, unnamed":                    {steps{sent("", 1, "a"), answered("")}, "", 7, "a"},
		"failed":                                {steps{sent("p", 1, "a"), failed("p")}, "p", 2, "nothing"},
		"in the same batch":                     {steps{sent("p", 1, "a")}, "p", 1, "a"},
		"in another batch":                      {steps{sent("p", 1, "a")}, "p", 2, "a, perhaps"},
		"the only unnamed one, another batch":   {steps{sent("", 1, "a")}, "", 2, "a"},
		"the second unnamed one, another batch": {steps{sent("", 1, "a"), sent("", 1, "b")}, "", 2, "b, perhaps"},
		"replaced, another batch":               {steps{sent("", 1, "a"), answered(""), sent("", 2, "b")}, "", 3, "b, perhaps"},
		"replaced, the same batch":              {steps{sent("", 1, "a"), answered(""), sent("", 2, "b")}, "", 2, "b"},
		"replaced and confirmed":                {steps{sent("", 1, "a"), sent("", 2, "b"), answered(""), answered("")}, "", 3, "b"},
		"the second failed":                     {steps{sent("", 1, "a"), sent("", 2, "b"), answered(""), failed("")}, "", 3, "a"},
		"the first failed":                      {steps{sent("", 1, "a"), sent("", 2, "b"), failed(""), answered("")}, "", 3, "b"},
		"the first is answered":                 {steps{sent("p", 1, "a"), sent("p", 2, "b"), answered("p")}, "p", 3, "b, perhaps"},
		"closed":                                {steps{sent("p", 1, "a"), answered("p"), closed("p")}, "p", 2, "nothing"},
		"closed, given again":                   {steps{sent("p", 1, "a"), answered("p"), sent("p", 2, "b"), closed("p"), answered("p")}, "p", 3, "b"},
		"closed, not known":                     {steps{closed("p")}, "p", 1, "nothing"},
		"cleared":                               {steps{sent("p", 1, "a"), sent("", 1, "a"), answered("p"), answered(""), cleared}, "p", 2, "nothing"},
		"cleared, unnamed":                      {steps{sent("p", 1, "a"), sent("", 1, "a"), answered("p"), answered(""), cleared}, "", 2, "nothing"},
		"cleared while it is on its way":        {steps{sent("p", 1, "a"), cleared, answered("p")}, "p", 2, "a"},
		"answered without a question":           {steps{answered("p"), answered("")}, "", 1, "nothing"},
		"PostgreSQL keeps 63 bytes of a name":   {steps{sent(long+"x", 1, "a"), answered(long + "x")}, long + "y", 2, "a"},
		"so does Closed":                        {steps{sent(long+"x", 1, "a"), answered(long + "x"), closed(long)}, long, 2, "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			var n Names[string]
			for _, step := range c.steps {
				step(&n)
			}
			if got := find(&n, c.name, c.batch); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// What is forgotten leaves nothing behind.
func TestNamesAreForgotten(t *testing.T) {
	var n Names[int]
	for i := range 1000 {
		name := fmt.Sprint(i)
		n.Sent([]byte(name), 1, i)
		if i%2 == 0 {
			n.Answered(name, false)
		} else {
			n.Answered(name, true)
			n.Closed(name)
		}
	}
	if len(n.named) != 0 || n.Pending() != 0 {
		t.Errorf("%d names, %d pending", len(n.named), n.Pending())
	}
}

// A pipeline moves no more than a few slots for each message, however many are
// pending: that is counted, not timed.
func TestALongPipelineIsLinear(t *testing.T) {
	const messages = 100_000
	for _, name := range []string{"", "p"} {
		var n Names[int]
		moved, sent := 0, 0
		send := func() {
			before := []assignment[int]{}
			if m := n.find([]byte(name)); m != nil {
				before = m.sent
			}
			n.Sent([]byte(name), uint32(sent), sent)
			if after := n.find([]byte(name)).sent; len(before) > 0 && (&before[0] != &after[0] || len(after) != len(before)+1) {
				moved += len(after)
			}
			sent++
		}
		for range messages {
			send()
			if what, ok, _ := n.Find([]byte(name), uint32(sent-1)); !ok || what != sent-1 {
				t.Fatalf("message %d means %d", sent-1, what)
			}
		}
		for m := n.find([]byte(name)); len(m.sent) < cap(m.sent); { // the worst place to begin
			send()
		}
		pending := sent
		for range messages {
			n.Answered(name, true)
			send()
		}
		if n.Pending() != pending || moved > 10*sent {
			t.Errorf("%d are pending, %d slots were moved for %d messages", n.Pending(), moved, sent)
		}
		for range pending {
			n.Answered(name, true)
		}
		if what, ok, sure := n.Find([]byte(name), 0); !ok || !sure || what != sent-1 || n.Pending() != 0 {
			t.Errorf("in the end it means %d, %d are pending", what, n.Pending())
		}
		if m := n.find([]byte(name)); cap(m.sent) > 64 {
			t.Errorf("%d slots are kept", cap(m.sent))
		}
	}
}
