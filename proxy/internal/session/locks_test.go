package session

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// An answer behind which the client may have an advisory lock is held back outside of transactions, until
// somebody has looked.
func TestAnswersWaitForALookAtLocks(t *testing.T) {
	for name, c := range map[string]struct {
		sent   []byte
		answer string // the states of its ReadyForQuery
		due    bool
	}{
		"pg_advisory_lock":         {simple("SELECT pg_advisory_lock(1)"), "I", true},
		"pg_try_advisory_lock":     {parsedNow("SELECT pg_try_advisory_lock(1)"), "I", true},
		"pg_advisory_unlock":       {simple("select PG_ADVISORY_UNLOCK(1)"), "I", true},
		"DISCARD ALL":              {simple("DISCARD ALL"), "I", true},
		"by EXECUTE":               {slices.Concat(simple("PREPARE p AS SELECT pg_advisory_lock(1)"), simple("EXECUTE p")), "II", true},
		"in a transaction":         {simple("BEGIN; SELECT pg_advisory_lock(1)"), "T", false},
		"in one that ends":         {slices.Concat(simple("BEGIN"), simple("SELECT pg_advisory_lock(1)"), simple("COMMIT")), "TTI", true},
		"of the transaction":       {simple("SELECT pg_advisory_xact_lock(1)"), "I", false},
		"nothing of them":          {simple("SELECT 1"), "I", false},
		"behind another statement": {slices.Concat(simple("SELECT 1"), simple("SELECT pg_advisory_lock(1)")), "II", true},
	} {
		for _, follows := range []bool{true, false} {
			s := begunWith(t, Config{FollowsLocks: follows}, "", discard{})
			var out Out
			if used := s.FromClient(c.sent, &out); used != len(c.sent) {
				t.Fatalf("%s: %d of %d bytes were used", name, used, len(c.sent))
			}
			var answers []byte
			for i, state := range strings.Split(c.answer, "") {
				if i == 0 && strings.Contains(name, "try") {
					answers = slices.Concat(message(wire.ParseComplete, ""), message(wire.BindComplete, ""), message(wire.NoData, ""), done("SELECT 1"))
				} else {
					answers = slices.Concat(answers, done("SELECT 1"))
				}
				answers = append(answers, ready(state)...)
			}
			used, _ := s.FromServer(answers, &out)
			left := len(answers) - used
			if due := c.due && follows; lookDue(s) != due || (left == len(ready("I"))) != due || left != 0 && !due {
				t.Errorf("%s, followed %v: due %v, %d bytes are held back", name, follows, lookDue(s), left)
				continue
			}
			if left == 0 {
				continue
			}
			if used, _ := s.FromServer(answers[used:], &out); used != 0 {
				t.Errorf("%s: it isn't held back for long", name)
			}
			s.LocksSeen(nil)
			if used, _ := s.FromServer(answers[used:], &out); used != left || lookDue(s) {
				t.Errorf("%s: it is held back for ever", name)
			}
		}
	}
}

// A client that sends the next such message during a look gets a look for that one, too.
func TestALookAtLocksBehindAnother(t *testing.T) {
	s := begunWith(t, Config{FollowsLocks: true}, "", discard{})
	var out Out
	takes, answer := simple("SELECT pg_advisory_lock(1)"), slices.Concat(done("SELECT 1"), ready("I"))
	s.FromClient(takes, &out)
	s.FromServer(answer, &out)
	s.FromClient(takes, &out)
	if used, _ := s.FromServer(ready("I"), &out); used != 0 || !lookDue(s) {
		t.Error("the first answer isn't held back any more")
	}
	s.LocksSeen(nil)
	if used, _ := s.FromServer(ready("I"), &out); used == 0 || lookDue(s) {
		t.Error("the first answer is held back for ever")
	}
	if used, _ := s.FromServer(answer, &out); used == len(answer) || !lookDue(s) {
		t.Error("the second answer isn't held back")
	}
}

// Where a grant could not be recorded the session ends.
func TestALookAtLocksThatFails(t *testing.T) {
	s := begunWith(t, Config{FollowsLocks: true}, "", discard{})
	var out Out
	s.FromClient(simple("SELECT pg_advisory_lock(1)"), &out)
	s.FromServer(slices.Concat(done("SELECT 1"), ready("I")), &out)
	s.LocksSeen(&wire.Error{Code: "57P01"})
	if used, _ := s.FromServer(ready("I"), &out); used != 0 || s.Fatal() == nil || s.Fatal().Code != "57P01" {
		t.Errorf("%d bytes pass, FATAL %v", used, s.Fatal())
	}
}

func lookDue(s *Session) bool { return s.LocksDue() != nil }

// The claims of followed rows are announced by notices of their table's trigger, which the client doesn't
// see. The driver looks behind each statement from there to the end of the transaction, whatever else is on
// its way, since the transaction may be over: by COMMIT AND CHAIN, or with more statements behind it.
func TestAnswersWaitForALookAtRows(t *testing.T) {
	announced := func(claim string) []byte {
		return message(wire.NoticeResponse, "SINFO\x00C00000\x00Mchanged\x00D"+claim+"\x00swirefence\x00trow_claims\x00\x00")
	}
	s := begunWith(t, Config{FollowsRows: []string{"shedlock(a)", "shedlock(b)"}}, "", discard{})
	var out Out
	looks := func(state string, claims ...string) {
		t.Helper()
		if used, _ := s.FromServer(ready(state), &out); used != 0 || s.LocksDue() == nil || s.LocksDue().Advisory || !slices.Equal(s.LocksDue().Claims, claims) {
			t.Fatalf("%s: due %v", state, s.LocksDue())
		}
		s.LocksSeen(nil)
		if used, _ := s.FromServer(ready(state), &out); used == 0 || s.LocksDue() != nil {
			t.Fatalf("%s: the answer is held back for ever", state)
		}
	}
	answer := slices.Concat(done("BEGIN"), announced("shedlock(a)"), announced("shedlock(c) 7"), announced("shedlock(b) 7"), announced("shedlock(a) 7"), announced("shedlock(b)"), done("UPDATE 5"))
	s.FromClient(simple("BEGIN; UPDATE shedlock SET x = 1"), &out)
	s.FromClient(simple("COMMIT AND CHAIN"), &out)
	s.FromClient(simple("COMMIT"), &out)
	s.FromClient(simple("SELECT 1"), &out)
	if s.FromServer(answer, &out); bytes.Contains(joined(&out), []byte("row_claims")) {
		t.Errorf("the client sees the notices: %q", joined(&out))
	}
	looks("T", "shedlock(b) 7", "shedlock(a) 7")
	s.FromServer(done("COMMIT"), &out)
	looks("T", "shedlock(b) 7", "shedlock(a) 7")
	s.FromServer(done("COMMIT"), &out)
	looks("I", "shedlock(b) 7", "shedlock(a) 7")
	if used, _ := s.FromServer(slices.Concat(done("SELECT 1"), ready("I")), &out); used == 0 || lookDue(s) {
		t.Error("the claims of a transaction outlive it")
	}

	s = begunWith(t, Config{}, "", discard{})
	s.FromClient(simple("UPDATE shedlock SET x = 1"), &out)
	if s.FromServer(slices.Concat(answer, ready("I")), &out); lookDue(s) {
		t.Error("rows are followed that nobody named")
	}
}
