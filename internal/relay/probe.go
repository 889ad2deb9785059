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
	mode, err := serverMode(ctx, client)
	switch {
	case err != nil:
		return notReady(err)
	case mode == "cluster":
		return errCluster
	case mode == "sentinel":
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

// serverMode returns standalone, cluster or sentinel.
func serverMode(ctx context.Context, client *goredis.Client) (string, error) {
	info, err := client.Info(ctx, "server").Result()
	if err != nil && !strings.HasPrefix(err.Error(), "NOPERM") {
		return "", err
	}
	for line := range strings.Lines(info) {
		if mode, found := strings.CutPrefix(strings.TrimSpace(line), "redis_mode:"); found {
			return mode, nil
		}
	}
	hello, err := client.Do(ctx, "HELLO").Result()
	if err != nil {
		return "standalone", nil // neither is allowed: a script on a cluster's foreign key fails
	}
	return fieldOf(hello, "mode"), nil
}

// fieldOf returns a field of a map, which RESP2 has as a list.
func fieldOf(reply any, field string) string {
	switch m := reply.(type) {
	case map[any]any:
		return fmt.Sprint(m[field])
	case []any:
		for i := 0; i+1 < len(m); i += 2 {
			if m[i] == field {
				return fmt.Sprint(m[i+1])
			}
		}
	}
	return ""
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
