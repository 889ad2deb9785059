package session

import (
	"fmt"
	"strings"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// setup is what is drawn before the first byte moves.
type setup struct {
	mode   Mode
	policy terms
	major  int
	token  string
	hold   time.Duration
	cut    int    // bytes of the script that the client never sends
	script []part // all that the client sends
	travel []byte // the rest of the dice: how the bytes travel
}

// part is a message, or a few that belong together.
type part struct {
	bytes []byte
	story string
}

func draw(d *dice) *setup {
	s := &setup{
		mode: pick(d, Enforce, Enforce, Enforce, Enforce, Enforce, Shadow, Off), major: pick(d, 18, 17, 15, 14, 16),
		token: pick(d, "", "a=1", "", "a=3", "", "a=2"),
	}
	s.policy = terms{
		enforced: s.mode == Enforce, required: d.n(4) == 3, schema: d.n(8) != 7, unlockers: d.n(4) == 3, failing: d.n(8) == 7, snapshots: d.n(4) == 3,
	}
	if s.policy.failing { // else nobody knows that they are there
		s.policy.schema, s.policy.unlockers = true, false
	}
	s.policy.unlockers = s.policy.unlockers && s.policy.schema // nobody asks where there is none
	s.policy.leased = s.mode != Off && d.n(4) == 3
	s.hold = pick(d, 50*time.Millisecond, 50*time.Millisecond, 0)
	leaves := pick(d, 0, 0, 0, 0, 0, 1, 2)
	open := false
	for range 1 + d.n(24) {
		var parts []part
		parts, open = drawMessage(d, s.major, open)
		s.script = append(s.script, parts...)
	}
	switch leaves {
	case 1:
		s.script = append(s.script, pick(d, part{message(wire.Terminate, ""), "Terminate"}, part{message(wire.Terminate, "why"), "Terminate with a body"}))
		s.cut = d.n(4)
	case 2:
		s.cut = 1 + d.n(20)
	default:
		s.script = append(s.script, ending()...)
	}
	s.travel = d.left
	return s
}

// ending ends whatever is under way: a COPY, a batch, a transaction.
func ending() []part {
	return []part{{message(wire.CopyFail, "end\x00"), "CopyFail"}, sync_, query("ROLLBACK"), query("SHOW x")}
}

// drawText draws what a Query or a Parse says. Commands of transactions and
// writes come oftener than the rest.
func drawText(d *dice, statements int) string {
	var parts []string
	for range statements {
		sql := texts[d.n(len(texts))]
		if d.n(3) == 1 {
			sql = pick(d, "BEGIN", "COMMIT", "INSERT INTO t VALUES (1)", "SELECT 1", "UPDATE t SET a = 1 RETURNING a", "ROLLBACK")
		}
		if d.retell != nil && d.n(8) == 7 {
			sql = pick(d, rareTexts...)
		}
		if d.n(4) == 3 {
			sql += " " + comments[d.n(len(comments))]
		}
		if d.n(64) == 63 && statements == 1 { // one that sets a fence and writes is a gap
			sql = "/*" + strings.Repeat("x", 1<<10) + "*/" + sql
		}
		parts = append(parts, sql)
	}
	text := strings.Join(parts, "; ")
	if d.retell != nil {
		text = d.retell(text)
	}
	return text
}

// drawMessage draws what the client sends next. open says that a batch is open;
// up to version 17 a Query may come in the middle of one.
func drawMessage(d *dice, major int, open bool) (parts []part, stillOpen bool) {
	statement, portal := pick(d, "", "", "s", "p"), pick(d, "", "", "c")
	kind := d.n(16)
	add := func(bytes []byte, format string, args ...any) {
		parts = append(parts, part{bytes, fmt.Sprintf(format, args...)})
	}
	execute := func(limit int) {
		add(message(wire.Execute, portal+"\x00\x00\x00\x00"+string(rune(limit))), "Execute %q %d", portal, limit)
	}
	if open && (major >= 18 || d.n(4) != 0) && (kind < 5 || kind == 15) {
		parts = append(parts, sync_)
	}
	switch kind {
	case 0, 1, 2, 3, 4:
		text := drawText(d, pick(d, 1, 1, 1, 2, 3))
		if d.n(32) == 31 {
			add(message(wire.Query, text), "Query without an end")
		} else {
			parts = append(parts, query(text))
		}
		return parts, false
	case 5, 6, 7:
		text := drawText(d, pick(d, 1, 1, 1, 1, 1, 1, 1, 2))
		parts = append(parts, run(text))
		if strings.Contains(text, enteringAlone) {
			parts = append(parts, sync_)
			return parts, false
		}
	case 8:
		text := drawText(d, 1)
		if strings.Contains(text, enteringAlone) {
			text = "SELECT 1"
		}
		add(wire.AppendParse(nil, statement, text), "Parse %q %s", statement, text)
	case 9:
		add(wire.AppendBind(nil, portal, statement), "Bind %q of %q", portal, statement)
		execute(d.n(3))
	case 10:
		execute(d.n(2))
	case 11:
		what := pick(d, "S"+statement, "P"+portal)
		if d.n(2) == 0 {
			add(message(wire.Describe, what+"\x00"), "Describe %q", what)
		} else {
			add(message(wire.Close, what+"\x00"), "Close %q", what)
		}
	case 12, 13:
		parts = append(parts, sync_)
		return parts, false
	case 14:
		body := pick(d, "1\n", "bad")
		add(message(wire.CopyData, body), "CopyData %q", body)
		switch d.n(4) {
		case 1:
			parts = append(parts, copyDone)
		case 2:
			add(message(wire.CopyFail, "no\x00"), "CopyFail")
		case 3:
			add(message(wire.Flush, ""), "Flush")
		}
		return parts, open
	default:
		parts = append(parts, pick(d, fastCall, fastCall, callSets))
		return parts, false
	}
	return parts, true
}
