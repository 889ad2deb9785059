package relay

import "strconv"

// act handles a command that must not simply pass. Only where the connection isn't ready, or in a
// transaction of the client's, it may be a plain one, or its begin.
func (s *session) act(v verdict, raw []byte) error {
	control := s.parser.spec.control
	setUp := setups[control]
	switch {
	case s.tx != nil:
		return s.actInTransaction(v, raw)
	case v == special && setUp != nil:
		return s.setUp(raw, setUp)
	case !s.ready:
		return s.actBeforeReady(v, raw)
	case v == plain || s.passes():
		return s.forward(raw)
	case control == multi:
		return s.beginTransaction(raw)
	}
	return s.lock(raw)
}

// actBeforeReady sends what else clients send when they connect, reply by reply. At the first other
// command it looks whether the user may take locks.
func (s *session) actBeforeReady(v verdict, raw []byte) error {
	if args := s.parser.args; v == special {
		switch s.parser.spec.control {
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

// setUp sends a command of the connection, and does what follows from it if the server takes it.
func (s *session) setUp(raw []byte, follows func(*session, [][]byte)) error {
	kept, err := s.ask(raw, keep)
	if err != nil {
		return err
	}
	if !isError(kept[0]) {
		follows(s, s.parser.args)
	}
	return s.answer(kept[0])
}

// setups is what follows from the commands that set up a connection, outside of a transaction. The
// rights of another user are looked at anew.
var setups = map[control]func(s *session, args [][]byte){
	selects: func(s *session, args [][]byte) {
		var err error
		if s.db, err = strconv.Atoi(string(args[1])); err != nil {
			s.db = -1
		}
	},
	login: func(s *session, args [][]byte) {
		if isName(args[0], "AUTH") {
			s.becomes("default")
			if len(args) > 2 {
				s.user = string(args[1])
			}
			return
		}
		if len(args) > 1 {
			s.resp3 = string(args[1]) == "3"
		}
		for i := 2; i+1 < len(args); i++ {
			if isName(args[i], "AUTH") {
				s.becomes(string(args[i+1]))
				return
			}
		}
	},
	reset: func(s *session, _ [][]byte) {
		s.becomes("default")
		s.db, s.resp3, s.watching = 0, false, false
	},
}

// becomes notes another user.
func (s *session) becomes(user string) { s.ready, s.user, s.refused = false, user, "" }
