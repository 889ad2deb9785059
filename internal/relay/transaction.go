package relay

import (
	"bytes"
	"time"
)

// transaction is one of the client's that may name locks: the scripts are in it, ahead of the first
// command that names a lock and ahead of EXEC, and the relay takes their replies out.
type transaction struct{ follow }

// rawTransaction returns the length of the rest of a transaction whose MULTI is the last command, if
// it is at hand as a whole and has nothing that the relay must follow: it passes as bytes.
func (s *session) rawTransaction(v verdict, buf []byte) int {
	if v != special || s.parser.spec.control != multi || !s.ready || s.tx != nil || s.opaque != "" {
		return 0
	}
	ahead := parser{locks: s.parser.locks, limit: s.parser.limit}
	for at := 0; at < len(buf); {
		v, n, err := ahead.next(buf[at:])
		if err != nil || v == incomplete || ahead.skipArgs > 0 {
			return 0
		}
		if at += n; v != special {
			continue
		}
		switch ahead.spec.control {
		case execute, discard:
			s.watching = false
			return at
		case handshake, multi, watch, unwatch, reads:
		default:
			return 0
		}
	}
	return 0
}

func (s *session) beginTransaction(raw []byte) error {
	s.tx = &transaction{}
	ahead := s.replies.expect(pass)
	s.replies.beginTransaction()
	return s.forward(append(ahead, raw...))
}

func (s *session) actInTransaction(v verdict, raw []byte) error {
	if v == plain {
		return s.push(raw, pass)
	}
	args := s.parser.args
	switch s.parser.spec.control {
	case execute:
		return s.exec(raw)
	case discard:
		s.tx, s.watching = nil, false
		return s.push(raw, unframed)
	case selects:
		s.db = -1
		return s.push(raw, pass)
	case ofClient:
		if len(args) > 1 && isName(args[1], "REPLY") {
			return s.loseTransaction(raw)
		}
		return s.push(raw, pass)
	case subscribe:
		if !s.resp3 {
			return s.loseTransaction(raw)
		}
		return s.push(raw, pass)
	case login, reset, monitor:
		return s.loseTransaction(raw)
	case multi, watch, unwatch, handshake, reads:
		return s.push(raw, pass)
	}
	return s.lockInTransaction(raw)
}

// loseTransaction lets all pass from then on, and no command of a lock.
func (s *session) loseTransaction(raw []byte) error {
	if len(s.tx.tracks) > 0 {
		s.opaque = "MULTI has both a lock's command and one of the connection"
		return errOpaque
	}
	s.opaque, s.tx = "a command of the connection was sent inside MULTI", nil
	return s.push(raw, unframed)
}

func (s *session) lockInTransaction(raw []byte) error {
	if reason := s.whyRefused(); reason != "" {
		s.relay.metrics.refused.Inc()
		// A command that the server refuses, so that it refuses EXEC, too.
		return s.push(appendCommand(nil, "EVAL"), replaced(refusal(reason)))
	}
	added := s.add(&s.tx.follow)
	s.tx.values = cloneAll(s.tx.values)
	if len(added) == 0 {
		return s.push(raw, pass)
	}
	before := follow{tracks: added}
	return s.push(append(before.before(nil), raw...), own, pass)
}

func cloneAll(values [][]byte) [][]byte {
	for i, value := range values {
		values[i] = bytes.Clone(value)
	}
	return values
}

func (s *session) exec(raw []byte) error {
	tx := s.tx
	s.tx, s.watching = nil, false
	if len(tx.tracks) == 0 {
		return s.push(raw, unframed)
	}
	tx.sent = time.Now()
	kept, err := s.ask(append(tx.after(nil, s.relay.opts.ID), raw...), own, keep)
	if err != nil {
		return err
	}
	results, ok := elements(kept[0])
	ours := s.replies.transactionsOwn()
	if !ok || len(ours) == 0 || ours[len(ours)-1] >= len(results) { // the server has run none of it
		return s.answer(kept[0])
	}
	seen := results[ours[len(ours)-1]]
	for _, i := range ours {
		if isError(results[i]) {
			seen = results[i]
		}
	}
	reply := appendHeader(nil, '*', len(results)-len(ours))
	for i, result := range results {
		if len(ours) > 0 && ours[0] == i {
			ours = ours[1:]
			continue
		}
		reply = append(reply, result...)
	}
	return s.followed(&tx.follow, reply, seen, refusal(givenBack))
}
