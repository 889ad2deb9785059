//go:build linux

package faulttest

import (
	"fmt"
	"os"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/wirefence/wirefence/fence"
)

// operation is an operation of the model.
type operation struct {
	what    deed
	token   fence.Token
	current fence.Token // of a refusal
	by      string
}

type deed string

const (
	grants  deed = "is granted"
	seals   deed = "seals for nobody" // an acquire that failed, or whose client was gone
	revokes deed = "revokes up to"
	writes  deed = "writes with"
	refuses deed = "is refused with"
)

// register models a resource: it holds the token of the last grant. A grant increases it,
// a write succeeds if it has this token, and a refused write has read a greater one.
var register = porcupine.Model{
	Init: func() any { return fence.Token(0) },
	Step: func(state, input, _ any) (bool, any) {
		last, op := state.(fence.Token), input.(operation)
		switch op.what {
		case grants, seals, revokes:
			return op.token > last, op.token
		case writes:
			return op.token == last, last
		case refuses:
			return op.token < last && op.current == last, last
		}
		return false, last
	},
	DescribeOperation: func(input, _ any) string {
		op := input.(operation)
		text := fmt.Sprintf("%s %s %d", op.by, op.what, op.token)
		if op.what == refuses {
			text += fmt.Sprintf(", for %d", op.current)
		}
		return text
	},
	DescribeState: func(state any) string { return fmt.Sprint("token ", state) },
}

// operations returns the history as operations of the model.
//
// If the outcome of a call is unknown to its client, the commits show whether it took
// effect; if not, it is left out. It may have taken effect at any time after the call,
// but not after a greater token was granted, because that grant would then be one of a
// lower token. So the operation ends at the latest when such a grant returns, which only
// shortens the search.
func (h *history) operations() (ops []porcupine.Operation) {
	add := func(lane int, call, ret int64, op operation) {
		ops = append(ops, porcupine.Operation{ClientId: lane, Input: op, Call: call, Return: max(call, ret)})
	}
	returns := h.earliestReturns()
	if h.first > 0 {
		add(0, 0, 0, operation{what: grants, token: h.first, by: "the test"})
	}
	for _, r := range h.revocations {
		add(0, r.call, r.ret, operation{what: revokes, token: r.token, by: "an operator"})
	}
	byName := map[string]*attempt{}
	for _, a := range h.attempts {
		byName[a.by] = a
		if a.token > 0 {
			add(a.lane, a.call, a.ret, operation{what: grants, token: a.token, by: a.by})
		}
	}
	inJournal := map[string]bool{}
	for _, c := range h.commits {
		a := byName[c.by]
		if c.row != "" {
			inJournal[c.row] = true
		} else if a != nil && a.token != c.token {
			add(a.lane, a.call, returns(c.token), operation{what: seals, token: c.token, by: a.by})
		}
	}
	for _, w := range h.writes {
		op := operation{token: w.token, current: w.current, by: w.id}
		switch {
		case w.writeOutcome == refused:
			op.what = refuses
			add(w.lane, w.call, w.ret, op)
		case w.writeOutcome == committed:
			op.what = writes
			add(w.lane, w.call, w.ret, op)
		case inJournal[w.id]:
			op.what = writes
			add(w.lane, w.call, returns(w.token), op)
		}
	}
	return ops
}

// earliestReturns returns when the first grant of a greater token returned.
func (h *history) earliestReturns() func(fence.Token) int64 {
	all, end := h.grants(), h.end()
	return func(token fence.Token) int64 {
		first := end
		for _, a := range all {
			if a.token > token {
				first = min(first, a.ret)
			}
		}
		return first
	}
}

// searchPatience bounds the search for an order; it takes a fraction of a second.
const searchPatience = 2 * time.Minute

// linearizable returns a fault if no order of the history fits both the model and the
// clocks of the clients.
func linearizable(h *history) (faults []string) {
	result := porcupine.CheckOperationsTimeout(register, h.operations(), searchPatience)
	if result != porcupine.Ok {
		faults = append(faults, fmt.Sprintf("no order of the operations was found (%s)", result))
	}
	return faults
}

// draw writes the history as a page for a browser, with the longest orders that
// were found, and returns the name of the file.
func draw(h *history) (string, error) {
	_, info := porcupine.CheckOperationsVerbose(register, h.operations(), searchPatience)
	drawing, err := os.CreateTemp("", "wirefence-history-*.html")
	if err != nil {
		return "", err
	}
	defer drawing.Close()
	return drawing.Name(), porcupine.Visualize(register, info, drawing)
}
