//go:build linux

package faulttest

import (
	"fmt"

	"github.com/wirefence/wirefence/fence"
)

// history is the calls of the clients with their answers, and the commits of PostgreSQL,
// which come from its log. Times are those of record.
type history struct {
	first       fence.Token // sealed before the clients began; 0 if none
	attempts    []*attempt
	writes      []*write
	revocations []revocation
	commits     []commit // in their order
	cannotBe    error    // what is wrong with the first step that the model hasn't
}

// attempt is one acquire and, if it was granted, the time of the lease.
type attempt struct {
	by       string // the client and the round, as in the holder's name
	lane     int    // where it is drawn
	call     int64
	ret      int64       // 0: the client was gone before it returned
	token    fence.Token // 0: not granted
	failure  string
	rows     int64 // of older tokens, seen right behind the grant; -1: not seen
	lastHeld int64 // the last moment at which the holder is known to have held the lease
}

// write is one transaction of a client.
type write struct {
	id           string
	lane         int
	token        fence.Token
	call, ret    int64 // ret 0: the client was gone before it returned
	writeOutcome writeOutcome
	current      fence.Token // named by a refusal
	failure      string
}

// revocation is an operator's revocation, with the token that it returned.
type revocation struct {
	token     fence.Token
	call, ret int64
}

// commit is a row in the journal, or a token that was recorded as the
// resource's.
type commit struct {
	row   string // id of the write, "" for a recorded token
	token fence.Token
	by    string // the attempt that the token was sealed for, "" if unknown
}

// add reads the report of one client, in order. A killed client leaves attempts and
// writes without a return.
func (h *history) add(client string, lane int, records []record) error {
	attempts, writes := map[int]*attempt{}, map[int]*write{}
	for _, r := range records {
		switch r.What {
		case acquiring:
			a := &attempt{by: fmt.Sprintf("%s.%d", client, r.Round), lane: lane, call: r.At, rows: -1}
			attempts[r.Round] = a
			h.attempts = append(h.attempts, a)
			continue
		case writing:
			w := &write{id: fmt.Sprintf("%s.%d", client, r.Write), lane: lane, token: r.Token, call: r.At, writeOutcome: unknown}
			writes[r.Write] = w
			h.writes = append(h.writes, w)
			continue
		case wrote:
			w := writes[r.Write]
			if w == nil {
				return fmt.Errorf("%s: a write returns that was never called: %+v", client, r)
			}
			w.ret, w.writeOutcome, w.current, w.failure = r.At, r.Fate, r.Current, r.Error
			continue
		}
		a := attempts[r.Round]
		if a == nil {
			return fmt.Errorf("%s: no such round: %+v", client, r)
		}
		switch r.What {
		case granted:
			a.ret, a.token, a.lastHeld = r.At, r.Token, r.At
		case failed:
			a.ret, a.failure = r.At, r.Error
		case looked:
			a.rows = r.Rows
		case held:
			a.lastHeld = max(a.lastHeld, r.At)
		default:
			return fmt.Errorf("%s: not understood: %+v", client, r)
		}
	}
	return nil
}

// grants are the attempts that returned a token.
func (h *history) grants() (all []*attempt) {
	for _, a := range h.attempts {
		if a.token > 0 {
			all = append(all, a)
		}
	}
	return all
}

// end is a time after all others.
func (h *history) end() (last int64) {
	for _, a := range h.attempts {
		last = max(last, a.call, a.ret)
	}
	for _, w := range h.writes {
		last = max(last, w.call, w.ret)
	}
	return last + 1
}
