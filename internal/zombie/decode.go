package zombie

import (
	"errors"
	"fmt"
	"strings"
)

// Row is the columns of a row with their values as text, nil for null.
type Row map[string]*string

// Operations, as test_decoding names them.
const (
	opInsert   = "INSERT"
	opUpdate   = "UPDATE"
	opDelete   = "DELETE"
	opTruncate = "TRUNCATE"
)

// change is what a committed transaction did to a row, or by TRUNCATE to tables.
type change struct {
	transaction uint32
	tables      []string // as in SQL; several only of a TRUNCATE
	operation   string
	old         Row // the columns of the replica identity; nil where they aren't known
	new         Row // without values out of line that were not changed
}

// parseChange reads a line of test_decoding, such as
//
//	table public.totals: UPDATE: old-key: day[date]:'2026-11-23' new-tuple: day[date]:'2026-11-24' n[integer]:7
func parseChange(line string) (c change, err error) {
	r := reader{rest: line}
	if !r.take("table ") {
		return c, fmt.Errorf("a line of test_decoding begins with %.20q", line)
	}
	for {
		c.tables = append(c.tables, r.until(": "))
		if !r.take(", ") {
			break
		}
	}
	r.expect(": ")
	for _, operation := range []string{opInsert, opUpdate, opDelete, opTruncate} {
		if r.take(operation + ":") {
			c.operation = operation
		}
	}
	switch {
	case c.operation == "":
		return c, fmt.Errorf("an unknown operation of test_decoding in %.80q", line)
	case c.operation == opTruncate || r.take(" (no-tuple-data)"):
		return c, r.err
	case c.operation == opDelete:
		c.old = r.row()
	default:
		if r.take(" old-key:") {
			c.old = r.row()
			r.expect(" new-tuple:")
		}
		c.new = r.row()
	}
	if r.rest != "" && r.err == nil {
		r.err = errSyntax
	}
	if r.err != nil {
		return c, fmt.Errorf("%w: %.80q", r.err, line)
	}
	return c, nil
}

var errSyntax = errors.New("a line of test_decoding can't be read")

// reader reads a line from its beginning. After an error it reads nothing.
type reader struct {
	rest string
	err  error
}

func (r *reader) take(text string) bool {
	rest, found := strings.CutPrefix(r.rest, text)
	if found {
		r.rest = rest
	}
	return found
}

func (r *reader) expect(text string) {
	if !r.take(text) && r.err == nil {
		r.err = errSyntax
	}
}

// until reads up to a mark, or a comma and a blank, outside of double quotes and of brackets.
func (r *reader) until(mark string) (read string) {
	quoted, depth := false, 0
	for i := range len(r.rest) {
		switch at := r.rest[i]; {
		case at == '"':
			quoted = !quoted
		case quoted:
		case depth == 0 && (strings.HasPrefix(r.rest[i:], mark) || strings.HasPrefix(r.rest[i:], ", ")):
			read, r.rest = r.rest[:i], r.rest[i:]
			return read
		case at == '[':
			depth++
		case at == ']':
			depth--
		}
	}
	r.rest, r.err = "", errSyntax
	return ""
}

// row reads columns: each is a blank, a name, a type in brackets, a colon and a value.
func (r *reader) row() Row {
	row := Row{}
	for strings.HasPrefix(r.rest, " ") && !strings.HasPrefix(r.rest, " new-tuple:") && r.err == nil {
		r.expect(" ")
		name := r.name()
		r.expect("[")
		r.until("]")
		r.expect("]:")
		r.value(row, name)
	}
	return row
}

// name reads an identifier.
func (r *reader) name() string {
	if !r.take(`"`) {
		at := max(0, strings.IndexByte(r.rest, '['))
		name := r.rest[:at]
		r.rest = r.rest[at:]
		return name
	}
	return r.quoted('"')
}

// quoted reads up to the end of what is quoted. A doubled mark stands for itself.
func (r *reader) quoted(mark byte) string {
	var text strings.Builder
	for {
		at := strings.IndexByte(r.rest, mark)
		if at < 0 {
			r.rest, r.err = "", errSyntax
			return ""
		}
		text.WriteString(r.rest[:at])
		r.rest = r.rest[at+1:]
		if r.rest == "" || r.rest[0] != mark {
			return text.String()
		}
		text.WriteByte(mark)
		r.rest = r.rest[1:]
	}
}

// value reads a value, and adds it to the row unless it is a large one that wasn't changed.
func (r *reader) value(row Row, name string) {
	if r.take("'") || r.take("B'") {
		value := r.quoted('\'')
		row[name] = &value
		return
	}
	at := strings.IndexByte(r.rest, ' ')
	if at < 0 {
		at = len(r.rest)
	}
	value := r.rest[:at]
	r.rest = r.rest[at:]
	switch value {
	case "null":
		row[name] = nil
	case "unchanged-toast-datum":
	default:
		row[name] = &value
	}
}
