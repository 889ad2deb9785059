package relay

import (
	"bytes"
	"strconv"
)

// act handles a command that must not simply pass. Only where the connection isn't ready, or in a
// transaction of the client's, it may be a plain one, or its begin.
func (s *session) act(v verdict, raw []byte) error {
	switch {
	case !s.ready:
		return s.actBeforeReady(v, raw)
	case s.tx != nil:
		return s.actInTransaction(v, raw)
	case v == plain || s.passes():
		return s.forward(raw)
	}
	switch s.parser.spec.control {
	case multi:
		return s.beginTransaction(raw)
	case selects:
		return s.selectDatabase(raw)
	case login:
		return s.login(raw)
	case reset:
		return s.reset(raw)
	}
	return s.lock(raw)
}

// actBeforeReady sends what clients send when they connect, one by one. At the first other command
// it looks whether the user may take locks.
func (s *session) actBeforeReady(v verdict, raw []byte) error {
	if _, err := s.replies.wait(); err != nil {
		return err
	}
	if v == special {
		args := s.parser.args
		switch s.parser.spec.control {
		case login:
			return s.login(raw)
		case selects:
			return s.selectDatabase(raw)
		case reset:
			return s.reset(raw)
		case ofClient:
			if len(args) < 2 || !isName(args[1], "REPLY") {
				return s.push(raw, pass)
			}
		case handshake:
			return s.push(raw, pass)
		}
	}
	known, err := s.mayFollow()
	if err != nil {
		return err
	}
	if !known { // the client must log in first, as the server will say
		return s.push(raw, pass)
	}
	s.ready = true
	if err := s.answer(nil); err != nil {
		return err
	}
	return s.act(v, raw)
}

func (s *session) selectDatabase(raw []byte) error {
	kept, err := s.ask(raw, keep)
	if err != nil {
		return err
	}
	if args := s.parser.args; bytes.Equal(kept[0], okReply) && len(args) == 2 {
		if s.db, err = strconv.Atoi(string(args[1])); err != nil {
			s.db = -1
		}
	}
	return s.answer(kept[0])
}

// login follows AUTH and HELLO. Another user's rights are looked at anew.
func (s *session) login(raw []byte) error {
	kept, err := s.ask(raw, keep)
	if err != nil {
		return err
	}
	if isError(kept[0]) {
		return s.answer(kept[0])
	}
	args := s.parser.args
	if isName(args[0], "AUTH") {
		s.user = "default"
		if len(args) > 2 {
			s.user = string(args[1])
		}
		s.ready, s.refused = false, ""
		return s.answer(kept[0])
	}
	if len(args) > 1 {
		s.resp3 = string(args[1]) == "3"
	}
	for i := 2; i+1 < len(args); i++ {
		if isName(args[i], "AUTH") {
			s.user, s.ready, s.refused = string(args[i+1]), false, ""
			break
		}
	}
	return s.answer(kept[0])
}

func (s *session) reset(raw []byte) error {
	kept, err := s.ask(raw, keep)
	if err != nil {
		return err
	}
	if !isError(kept[0]) {
		s.ready, s.db, s.user, s.resp3, s.watching, s.refused = false, 0, "default", false, false, ""
	}
	return s.answer(kept[0])
}
