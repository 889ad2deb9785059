package zombie

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Message is a message of a run to PostgreSQL that can change or show something there, or a command
// to Redis that names a lock. Others are not counted, such as Parse and passwords.
type Message struct {
	Connection int       `json:"connection" says:"the number of the run's connection"`
	Kind       string    `json:"kind" says:"connect, query, bind, execute, sync, call, copied, close, or redis"`
	SQL        string    `json:"sql,omitempty" says:"its statement, or that which it belongs to; the command to Redis"`
	Parameters []*string `json:"parameters,omitempty" says:"the values of $1, $2, …; those in binary as bytea"`
	Answer     string    `json:"answer,omitempty" says:"how the server answered: command tags, or an error"`
	// starts is true of a statement's first message.
	starts bool
	binary bool // a parameter is
	// at is when it came, since the run was started, and answered when its Query or Sync was; 0: not known.
	at, answered time.Duration
}

// The kinds of messages.
const (
	connects = "connect"
	queries  = "query"
	binds    = "bind"
	executes = "execute"
	syncs    = "sync"
	calls    = "call"
	copied_  = "copied"
	closes   = "close"
	commands = "redis"
)

// String is a message for people. What is before a Bind is before the statement.
func (m *Message) String() string {
	switch m.Kind {
	case queries, binds, commands:
		return m.Text()
	case connects, calls, closes:
		return map[string]string{connects: "(connects)", calls: "(calls a function)", closes: "(closes the connection)"}[m.Kind]
	}
	return "(" + m.Kind + ") " + m.Text()
}

// Text is the statement in one line, or its beginning.
func (m *Message) Text() string {
	text := strings.Join(strings.Fields(m.SQL), " ")
	if runes := []rune(text); len(runes) > mostText {
		text = string(runes[:mostText-1]) + "…"
	}
	return text
}

// mostText is how many characters of a statement people see.
const mostText = 70

// moments are the messages before which a run is frozen. At the last that close connections it may
// have ended already, since it awaits no answer.
func moments(messages []*Message) []*Message {
	for n := len(messages); n > 0 && messages[n-1].Kind == closes; n-- {
		messages = messages[:n-1]
	}
	return messages
}

// literal finds what differs in statements that do the same.
var literal = regexp.MustCompile(`'[^']*'|\d+`)

// pattern is what messages have in common that do the same.
func (m *Message) pattern() string { return m.Kind + literal.ReplaceAllString(m.SQL, "?") }

// firstTimes is when each statement was sent first.
func firstTimes(messages []*Message) map[string]time.Duration {
	all := map[string]time.Duration{}
	for _, m := range slices.Backward(messages) {
		all[m.pattern()] = m.at
	}
	return all
}

// seeds are the moments that are played in any case: before the first and the last occurrence of
// each statement, and before the first and the last message.
func seeds(messages []*Message) []int {
	all, last := map[int]bool{1: true, len(messages): true}, map[string]int{}
	for i, m := range messages {
		if !m.starts {
			continue
		}
		text := m.pattern()
		if last[text] == 0 {
			all[i+1] = true
		}
		last[text] = i + 1
	}
	for _, at := range last {
		all[at] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// inFlight is the longest time from one statement to the next that may have been sent without the
// first one's answer.
const inFlight = time.Millisecond

// pair is two statements, one behind the other, that may have been in flight at once on two connections: by
// the numbers of their first messages, and of the first message behind them.
type pair struct{ one, other, end int }

func pairs(messages []*Message) (all []pair) {
	starts := []int{}
	for i, m := range messages {
		if m.starts {
			starts = append(starts, i+1)
		}
	}
	starts = append(starts, len(messages))
	for n := 2; n < len(starts); n++ {
		a, b := messages[starts[n-2]-1], messages[starts[n-1]-1]
		if a.Connection != b.Connection && (b.at-a.at <= inFlight || a.answered > b.at) {
			all = append(all, pair{starts[n-2], starts[n-1], starts[n]})
		}
	}
	return all
}

// ends reports whether it is a statement's last message.
func (m *Message) ends() bool {
	return slices.Contains([]string{queries, syncs, calls, commands}, m.Kind)
}
