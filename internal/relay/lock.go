package relay

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"time"
)

// follow is a command of locks, or a transaction of the client's with such commands, that the
// scripts are put around.
type follow struct {
	tracks []*track
	values [][]byte // among which the application's value is
	sets   bool
	sent   time.Time // before the server got it
}

func (f *follow) before(dst []byte) []byte { return f.appendEval(dst, beforeText, f.tracks) }

func (f *follow) after(dst []byte, id string) []byte {
	args := []string{id, "0"}
	if f.sets {
		args[1] = "1"
	}
	for _, t := range f.tracks {
		args = append(args, t.known())
	}
	for _, value := range f.values {
		args = append(args, string(value))
	}
	return f.appendEval(dst, afterText, f.tracks, args...)
}

func (f *follow) appendEval(dst []byte, script string, tracks []*track, args ...string) []byte {
	all := []string{"EVAL", script, strconv.Itoa(2 * len(tracks))}
	for _, t := range tracks {
		all = append(all, t.key, t.state)
	}
	return appendCommand(dst, append(all, args...)...)
}

// lock follows a command that names locks.
func (s *session) lock(raw []byte) error {
	if s.opaque != "" {
		s.relay.metrics.refused.Inc()
		return errOpaque
	}
	if reason := s.whyRefused(); reason != "" {
		s.relay.metrics.refused.Inc()
		if _, err := s.ask(nil); err != nil {
			return err
		}
		return s.answer(refusal(reason))
	}
	f := follow{sent: time.Now()}
	s.add(&f)
	sent := f.before(appendCommand(nil, "MULTI"))
	sent = f.after(append(sent, raw...), s.relay.opts.ID)
	kept, err := s.ask(appendCommand(sent, "EXEC"), keep, keep, keep, keep, keep)
	if err != nil {
		return err
	}
	begun, reply, whole := kept[0], kept[2], kept[4]
	results, ok := elements(whole)
	switch {
	case !bytes.Equal(begun, okReply):
		return s.followed(&f, reply, nil, s.failed())
	case !ok || len(results) != 3: // the server has run none of them
		if isError(reply) {
			whole = reply
		}
		return s.answer(whole)
	case isError(results[0]):
		return s.followed(&f, results[1], nil, s.failed())
	}
	return s.followed(&f, results[1], results[2], s.failed())
}

// whyRefused says why a command of a lock can't be followed, "" if it can.
func (s *session) whyRefused() string {
	switch {
	case s.refused != "":
		return s.refused
	case s.watching:
		return "a lock's command can't be followed under WATCH: the relay's own transaction would end it. Take the lock on another connection, or ahead of WATCH"
	case s.db < 0:
		return "a lock's command can't be followed behind a SELECT inside MULTI; send SELECT outside of it"
	}
	return ""
}

// add adds the present command to what is followed, and returns the locks that are new.
func (s *session) add(f *follow) (added []*track) {
	args, spec := s.parser.args, s.parser.spec
	for _, l := range s.relay.locks.named(spec.place, args) {
		t := s.relay.track(l, s.db)
		if !slices.Contains(f.tracks, t) {
			added = append(added, t)
		}
	}
	f.tracks = append(f.tracks, added...)
	if spec.control == reads {
		f.values, f.sets = append(f.values, []byte(f.tracks[0].rivalValue())), true
		return added
	}
	f.values = append(f.values, values(args)...)
	f.sets = f.sets || sets(spec, args)
	return added
}

const givenBack = "the grant of the lock can't be sealed, so the lock was given back"

// failed is the reply of a command whose lock is none. SET with NX has one that can't be misread.
func (s *session) failed() []byte {
	switch {
	case !takesNX(s.parser.args):
		return refusal(givenBack)
	case s.resp3:
		return []byte("_\r\n")
	}
	return []byte("$-1\r\n")
}

// followed answers a command, or a transaction, with its reply, by what the script behind it has
// seen. If a lock was taken, it is sealed first.
func (s *session) followed(f *follow, reply, seen, failed []byte) error {
	looks, ok := readLooks(seen, len(f.tracks), f.sent)
	if !ok {
		s.relay.log.Error("cannot count the grants of a lock in Redis", "lock", f.tracks[0].key, "db", s.db, "error", trimmed(seen))
		for _, t := range f.tracks {
			if s.relay.free(t, f.values) {
				reply = failed
			}
		}
		return s.answer(reply)
	}
	granted := 0
	for i, l := range looks {
		if f.tracks[i].note(l); l.granted {
			granted++
		}
	}
	if granted == 0 {
		return s.answer(reply)
	}
	var err error
	s.whileConnected(func(ctx context.Context) {
		for i, l := range looks {
			if l.granted && err == nil {
				err = s.relay.grant(ctx, f.tracks[i], l)
			}
		}
	})
	if err == nil {
		if err = s.answer(reply); err == nil {
			return nil
		}
		failed = nil // the client has gone
	}
	for i, l := range looks {
		if l.granted {
			s.relay.giveUp(f.tracks[i], l)
		}
	}
	if failed == nil {
		return err
	}
	return s.answer(failed)
}
