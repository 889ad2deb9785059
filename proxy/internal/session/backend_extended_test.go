package session

import (
	"encoding/binary"
	"regexp"
	"slices"
	"strings"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// The model's side of the extended protocol.

// looksUp finds what takes a snapshot when it is parsed, before it runs; unchecked is
// what no check goes ahead of then, standsAlone outside a block.
var (
	looksUp     = regexp.MustCompile(`(?i)^\s*(SELECT|INSERT|UPDATE|DELETE|WITH|VALUES|TABLE|DECLARE|EXPLAIN)\b`)
	unchecked   = regexp.MustCompile(`(?i)^\s*(BEGIN|START|COMMIT|END|ROLLBACK|ABORT|SAVEPOINT|RELEASE|SET|RESET|SHOW|LOCK|DISCARD)\b`)
	standsAlone = regexp.MustCompile(`(?i)^\s*(VACUUM|CALL|DO)\b`)
)

func (b *backend) parse(body string) {
	parts := strings.Split(body, "\x00")
	if tail := strings.Join(parts[min(2, len(parts)):], "\x00"); len(tail) < 2 || len(tail) != 2+4*int(binary.BigEndian.Uint16([]byte(tail))) {
		b.fail("08P01")
		return
	}
	name, text := parts[0], parts[1]
	if _, there := b.statements[""]; name == "" {
		// A check that fails ahead of it in a block keeps the one before.
		b.unlike = b.unlike || there && b.tx.block == 'E'
		delete(b.statements, "")
		b.doubted = false
	}
	b.begin()
	statements, carried := b.split(text)
	_, exists := b.statements[name]
	switch {
	case len(statements) > 1, len(statements) == 1 && !b.known(statements[0]):
		b.fail("42601")
	case len(statements) == 1 && b.aborted(statements[0]):
		b.fail("25P02")
	case strings.HasPrefix(text, "SELECT wirefence.") && !b.policy.schema:
		b.fail("3F000")
	case exists:
		b.fail("42P05")
	default:
		b.statements[name] = preparedText{strings.Join(statements, ""), carried}
		if looksUp.MatchString(text) {
			b.looks()
		}
		b.tx.snapshot = b.tx.snapshot || !unchecked.MatchString(text) && (b.tx.block != 0 || !standsAlone.MatchString(text))
		b.say(wire.ParseComplete, "")
	}
}

func (b *backend) bind(body string) {
	name, rest, _ := strings.Cut(body, "\x00")
	statement, rest, _ := strings.Cut(rest, "\x00")
	b.unlike = b.unlike || b.doubted && statement == ""
	st, ok := b.statements[statement]
	b.begin()
	_, exists := b.portals[name]
	switch {
	case !ok:
		b.fail("26000")
		return
	case b.aborted(st.text):
		b.fail("25P02")
		return
	case exists && name != "":
		b.fail("42P03")
		return
	}
	p := &portal{preparedText: st}
	values := rest[4:]
	for range rest[3] {
		n := int(int32(binary.BigEndian.Uint32([]byte(values))))
		values = values[4:]
		if n < 0 {
			p.parameters = append(p.parameters, nil)
			continue
		}
		value := values[:n]
		p.parameters, values = append(p.parameters, &value), values[n:]
	}
	b.portals[name] = p
	b.say(wire.BindComplete, "")
}

func (b *backend) describe(body string) {
	if len(body) < 2 || body[0] != 'S' && body[0] != 'P' {
		b.fail("08P01")
		return
	}
	name := strings.TrimSuffix(body[1:], "\x00")
	b.unlike = b.unlike || b.doubted && name == ""
	b.begin()
	var text string
	if body[0] == 'S' {
		st, ok := b.statements[name]
		if !ok {
			b.fail("26000")
			return
		}
		text = st.text
	} else if p := b.portals[name]; p != nil {
		text = p.text
	} else {
		b.fail("34000")
		return
	}
	has := b.hasColumns(text)
	if has && b.tx.block == 'E' {
		b.fail("25P02")
		return
	}
	if body[0] == 'S' {
		b.say('t', "\x00\x00")
	}
	if has {
		b.say(wire.RowDescription, "\x00\x00")
	} else {
		b.say(wire.NoData, "")
	}
}

func (b *backend) execute(body string) {
	name, rest, ok := strings.Cut(body, "\x00")
	if !ok || len(rest) != 4 {
		b.fail("08P01")
		return
	}
	p := b.portals[name]
	if p == nil {
		b.fail("34000")
		return
	}
	if p.text == "" {
		b.say(wire.EmptyQueryResponse, "")
		return
	}
	b.begin()
	if b.aborted(p.text) {
		b.fail("25P02")
		return
	}
	if p.ran && !b.hasColumns(p.text) {
		b.fail("55000")
		return
	}
	var r result
	if !p.ran {
		r = b.run(p.preparedText, p.parameters)
		if r.code == waiting {
			b.resume = func() { b.execute(body) }
			return
		}
		if r.code != "" {
			b.fail(r.code)
			return
		}
		if r.copyIn {
			p.ran = true
			b.say(wire.CopyInResponse, "\x00\x00\x00")
			b.copying = true
			return
		}
		p.ran, p.left, p.tag = true, len(r.rows), r.tag
	} else {
		if !strings.HasPrefix(p.text, "SELECT set_config(") { // which is SET in another form
			b.judge("what is left of "+p.text, p.carried)
		}
		r.rows = slices.Repeat([][]string{{"later"}}, p.left)
	}
	limit := int(binary.BigEndian.Uint32([]byte(rest)))
	n := p.left
	if limit > 0 && limit < n {
		n = limit
	}
	b.rows(r, n)
	p.left -= n
	if limit > 0 && n == limit {
		b.say(wire.PortalSuspended, "")
	} else {
		b.say(wire.CommandComplete, p.tag+"\x00")
	}
	b.tx.piped, b.ran = b.tx.began, true
	if r.ends {
		b.endImplicit()
	}
	if b.checkedBehind(p.text) {
		b.refuses("") // by the check behind it
	}
}

func (b *backend) close(body string) {
	if len(body) < 2 || body[0] != 'S' && body[0] != 'P' {
		b.fail("08P01")
		return
	}
	name := strings.TrimSuffix(body[1:], "\x00")
	if body[0] == 'S' {
		delete(b.statements, name)
	} else {
		delete(b.portals, name)
	}
	b.say(wire.CloseComplete, "")
}
