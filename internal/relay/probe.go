package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

var probeText = short(probeLua)

// probe looks at the server and at the rights of the relay's own user.
func (r *Relay) probe(ctx context.Context) error {
	client := r.own(0)
	hello := goredis.NewMapStringInterfaceCmd(ctx, "HELLO")
	if err := client.Process(ctx, hello); err != nil && !noHello.MatchString(err.Error()) {
		return notReady(err)
	}
	switch hello.Val()["mode"] {
	case "cluster":
		return errCluster
	case "sentinel":
		return errSentinel
	}
	denied, err := client.Eval(ctx, probeText, r.probeKeys(0), "1").Text()
	if err == nil && denied != "" {
		err = errors.New(denied)
	}
	if err == nil {
		err = client.ScriptExists(ctx, "0").Err() // SCRIPT and EVALSHA are what go-redis runs scripts by
	}
	switch err = notReady(err); {
	case errors.Is(err, ErrNotReady):
		return err
	case err != nil:
		return fmt.Errorf("the user of the upstream's URL can't follow locks: it needs MULTI, EXEC, EVAL, EVALSHA and PING, and the commands of strings and hashes "+
			"on the locks and on the keys wirefence:*: %w", err)
	}
	return nil
}

// noHello are the errors of a server that doesn't say what it is. On a cluster the script fails.
var noHello = regexp.MustCompile(`^(NOPERM|ERR unknown command) `)

// passing are the errors of a server that will take commands at another time.
var passing = regexp.MustCompile(`(^|[ -])(LOADING|READONLY|MASTERDOWN|BUSY|OOM|MISCONF|NOREPLICAS|max number of clients) `)

// notReady adds ErrNotReady to an error that passes without a change of settings.
func notReady(err error) error {
	network := net.Error(nil)
	if err != nil && (errors.As(err, &network) || errors.Is(err, io.EOF) || passing.MatchString(err.Error())) {
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	return err
}

func (r *Relay) probeKeys(db int) (keys []string) {
	for _, l := range r.locks.locks {
		keys = append(keys, l.key, newTrack(l, db, nil).state)
	}
	return keys
}

// mayFollow tries on a client's connection, with its user, what a lock's command needs. No client
// waits for it at its first lock: it is asked at the begin of the first connection of each user.
func (s *session) mayFollow() (known bool, err error) {
	r := s.relay
	r.mu.Lock()
	known = r.users[s.user]
	r.mu.Unlock()
	if known || s.db < 0 {
		return true, nil
	}
	keys := r.probeKeys(s.db)
	eval := append([]string{"EVAL", probeText, fmt.Sprint(len(keys))}, append(keys, "0")...)
	sent := appendCommand(nil, "PING")
	sent = appendCommand(sent, "MULTI")
	sent = appendCommand(sent, eval...)
	sent = appendCommand(sent, "EXEC")
	kept, err := s.ask(sent, keep, keep, keep, keep)
	if err != nil {
		return false, err
	}
	for _, reply := range kept {
		if bytes.HasPrefix(reply, []byte("-NOAUTH")) {
			return false, nil
		}
	}
	if answer, ok := elements(kept[3]); ok && len(answer) == 1 && bulk(answer[0]) == "" && !isError(answer[0]) && bytes.HasPrefix(kept[0], []byte("+PONG")) {
		r.mu.Lock()
		r.users[s.user] = true
		r.mu.Unlock()
		return true, nil
	}
	for _, reply := range kept {
		if isDenied(string(reply)) {
			s.refuseLocks(trimmed(reply))
			break
		}
	}
	return true, nil
}

// isDenied reports whether an error is about rights. Another one, as of a server that is loading its
// data, passes.
func isDenied(text string) bool {
	for _, words := range []string{"NOPERM", "executing the script", "ACL failure"} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

// refuseLocks notes that this user can't run what a lock's command needs.
func (s *session) refuseLocks(denied string) {
	s.refused = "the user " + s.user + " needs MULTI, EXEC, EVAL and PING, and the commands of strings and hashes on the locks and on the keys wirefence:*, for a lock's command: " + denied
	s.relay.log.Error("a user of Redis can't take locks through the relay", "user", s.user, "error", denied)
}

func trimmed(reply []byte) string {
	lines := strings.Split(strings.TrimSpace(string(reply)), "\r\n")
	return strings.TrimLeft(lines[len(lines)-1], "-!")
}
