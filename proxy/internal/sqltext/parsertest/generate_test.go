package parsertest

import (
	"strings"

	"pgregory.net/rapid"
)

// writer makes up statements, token by token, that PostgreSQL's grammar accepts
// for the most part. What is between the tokens is made up too.
type writer struct {
	t       *rapid.T
	escapes bool // standard_conforming_strings is off
	depth   int  // how much deeper it may go
	out     strings.Builder
}

func (w *writer) pick(words ...string) string { return rapid.SampledFrom(words).Draw(w.t, "word") }

func (w *writer) chance(of int) bool { return rapid.IntRange(1, of).Draw(w.t, "chance") == 1 }

// put writes tokens with a gap before each.
func (w *writer) put(tokens ...string) {
	for _, token := range tokens {
		if token == "" {
			continue
		}
		w.out.WriteString(w.gap())
		w.out.WriteString(token)
	}
}

func (w *writer) gap() string {
	if !w.chance(4) {
		return " "
	}
	return w.pick("\n", "\t", " \r\n ", "\f", "/**/", "/* ; ' \" $$ */", "/* /* ' */ ; */", "/*/* x */*/", "--\n", " -- ' ; /* \n",
		"-- insert into t\r", "/* for update */", "/***/", "--- $a$ \" \n", "/* \\ */", "/*--*/")
}

// literal is a literal that holds things which mean something elsewhere.
func (w *writer) literal() string {
	text := func() string {
		var b strings.Builder
		for range rapid.IntRange(0, 3).Draw(w.t, "pieces") {
			b.WriteString(w.pick("a", "1", ";", "''", "\"", "--", "/*", "*/", "$$", "$a$", "\n", "é", " insert into t ", "{}"))
		}
		return b.String()
	}
	escaped := func() string {
		return text() + w.pick("", `\'`, `\\`, `\';--`, `\\\'/*`, `\x41`, `\n`, `\101`)
	}
	switch rapid.IntRange(0, 8).Draw(w.t, "literal") {
	case 0:
		return w.pick("E", "e") + "'" + escaped() + text() + "'"
	case 1:
		if !w.escapes {
			return w.pick("U&", "u&") + "'" + text() + w.pick("", `\003b`, `\0027`, `\+00003b`) + "'"
		}
		return "N'" + escaped() + "'"
	case 2:
		return w.pick("B'01'", "X'1fF'", "b''", "x'a'", "n'x'")
	case 3:
		return "$$" + strings.ReplaceAll(text(), "$", "") + w.pick("", `\`, "'", "--", "/*") + "$$"
	case 4:
		tag := w.pick("$a$", "$_é1$", "$Body$")
		return tag + strings.ReplaceAll(text(), "$a$", "") + w.pick("", "$$", "$b$", `\`, "'") + tag
	case 5: // in parts
		return "'" + text() + "'" + w.pick("\n", " \n\t", "\r", "\f\n\n ") + "'" + text() + "'"
	case 6:
		return "E'" + escaped() + "'" + w.pick("\n", " \r\n ") + "'" + escaped() + "'"
	case 7:
		if w.escapes {
			return "'" + escaped() + "'"
		}
		return "'" + text() + w.pick(``, `\`, `\\`, `\\\`) + "'"
	}
	return "'" + text() + "'"
}

// name is a column, a table or an alias.
func (w *writer) name() string {
	return w.pick("a", "b", "c", "t", "T", "x1", "tab$", "é", "value", "key", "update_it", `"a"`, `"into"`, `"x;--y"`, `"/*"`, `"a""'b"`,
		`"for update"`, "U&\"d\\0061t\"", "names", "no", "share", "insert", "of", "set", "verbose_", "pg_am")
}

// function is a function's name: of the catalog, of users, of nobody.
func (w *writer) function() string {
	return w.pick("abs", "count", "lower", "LOWER", "pg_catalog.abs", "pg_catalog . length", `"abs"`, `"Writes It"`, "writes", "app.writes",
		"pure", "reads", "either", "value", "nextval", "pg_catalog.nextval", "setval", "now", "random", "set_config", "total", "pure_total",
		"nobody", "U&\"\\0077rites\"", "max", "pg_notify", "defaults", "mild", "lo_create", "generate_series", "app . \"pure\"", "WRITES")
}

func (w *writer) list(item func(), most int) {
	item()
	for range rapid.IntRange(0, most-1).Draw(w.t, "more") {
		w.put(",")
		item()
	}
}

func (w *writer) call() {
	w.put(w.function(), "(")
	if !w.chance(4) {
		w.list(w.expression, 2)
	}
	w.put(")")
	switch {
	case w.chance(8):
		w.put("FILTER", "(", "WHERE")
		w.expression()
		w.put(")")
	case w.chance(8):
		w.put("OVER", "(", "PARTITION", "BY")
		w.expression()
		w.put(")")
	}
}

var operators = []string{"+", "-", "*", "/", "=", "<", ">=", "<>", "||", "@>", "->", "#>>", "AND", "OR", "###", "#+#", "~", "!~*", "LIKE",
	"IS DISTINCT FROM", "OPERATOR ( pg_catalog.+ )", "OPERATOR(app.###)", "@-", "?", "^@"}

func (w *writer) expression() {
	if w.depth <= 0 {
		w.put(w.pick("1", "a", "$1", "1.5e3", ".5", "NULL", "t.a", w.literal()))
		return
	}
	w.depth--
	defer func() { w.depth++ }()
	switch rapid.IntRange(0, 19).Draw(w.t, "expression") {
	case 0, 1, 2:
		w.call()
	case 3, 4:
		w.expression()
		w.put(rapid.SampledFrom(operators).Draw(w.t, "operator"))
		w.expression()
	case 5:
		w.put("(")
		w.expression()
		w.put(")")
	case 6:
		w.put(w.pick("", "EXISTS", "ARRAY", "1 = ANY", "1 IN", "NOT EXISTS"), "(")
		w.query()
		w.put(")")
	case 7:
		w.put("CASE", "WHEN")
		w.expression()
		w.put("THEN")
		w.expression()
		w.put("END")
	case 8:
		w.put("CAST", "(")
		w.expression()
		w.put("AS", w.typeName(), ")")
	case 9:
		w.put("(")
		w.expression()
		w.put(")", "::", w.typeName())
	case 10:
		w.put(w.pick("COALESCE", "GREATEST", "ROW", "LEAST", "NULLIF"), "(")
		w.expression()
		w.put(",")
		w.expression()
		w.put(")")
	case 11:
		w.put("ARRAY", "[")
		w.list(w.expression, 2)
		w.put("]")
	case 12:
		w.put("TREAT", "(")
		w.expression()
		w.put("AS", w.pick("nextval", "abs", "writes"), ")")
	case 13:
		w.put(w.pick("EXTRACT ( year FROM now ( ) )", "TRIM ( both FROM 'x' )", "SUBSTRING ( 'abc' FROM 1 FOR 2 )", "INTERVAL '1' DAY",
			"OVERLAY ( 'abc' PLACING 'x' FROM 1 )", "POSITION ( 'a' IN b )", "CURRENT_TIMESTAMP ( 3 )", "GROUPING ( a )", "current_user",
			"XMLELEMENT ( NAME x , 1 )", "NORMALIZE ( 'x' , NFC )", "JSON_OBJECT ( 'a' : 1 )"))
	case 14:
		w.put("-")
		w.expression()
	case 15:
		w.put("a", "BETWEEN", "1", "AND", "(")
		w.expression()
		w.put(")")
	case 16:
		w.put("(", "t", ")", ".", w.pick("a", "field", "*"))
	default:
		w.put(w.pick(w.literal(), w.name(), "$1", "12", "0.5", "t . a", "app.t.b"))
	}
}

func (w *writer) typeName() string {
	return w.pick("int", "text", "varchar(3)", "pg_catalog.int4", "numeric(10,2)", "checked", "app.checked", "plain", "int[]", "timestamp with time zone",
		"double precision", "\"char\"", "bit varying(3)", "mood")
}

// query writes a SELECT and the like, at times one that writes.
func (w *writer) query() {
	w.depth--
	defer func() { w.depth++ }()
	if w.depth > 0 && w.chance(4) {
		w.with()
	}
	if w.depth > 0 && w.chance(6) {
		w.put("(")
		w.query()
		w.put(")", w.pick("UNION", "UNION ALL", "EXCEPT", "INTERSECT"))
		w.selects()
		return
	}
	switch rapid.IntRange(0, 9).Draw(w.t, "query") {
	case 0:
		w.put("VALUES", "(")
		w.list(w.expression, 2)
		w.put(")")
	case 1:
		w.put("TABLE", w.table())
	default:
		w.selects()
	}
}

func (w *writer) with() {
	w.put("WITH", w.pick("", "RECURSIVE"))
	w.list(func() {
		w.put(w.pick("w1", "w2", "abs", "writes", `"into"`))
		if w.chance(3) {
			w.put("(", "a", ",", w.name(), ")")
		}
		w.put("AS", w.pick("", "MATERIALIZED", "NOT MATERIALIZED"), "(")
		if w.depth > 0 && w.chance(4) {
			w.changes()
		} else {
			w.query()
		}
		w.put(")")
	}, 2)
}

func (w *writer) table() string {
	return w.pick("t", "app.t", "v", "clean", "log", `"t"`, "pg_am", "pg_catalog.pg_class", "locking", "guarded", "vn", "app . v")
}

func (w *writer) selects() {
	w.put("SELECT")
	switch {
	case w.chance(8):
		w.put("DISTINCT")
	case w.chance(8):
		w.put("DISTINCT", "ON", "(", "a", ")")
	}
	w.list(func() {
		w.expression()
		if w.chance(4) {
			w.put("AS", w.pick("x", "into", "as", "update", "y", `"as"`, "U&\"x\"", "for", "select"))
		}
	}, 2)
	if w.chance(20) {
		w.put("INTO", w.pick("", "TEMP", "TABLE"), "made")
	}
	if !w.chance(3) {
		w.put("FROM")
		w.list(w.from, 2)
	}
	if w.chance(3) {
		w.put("WHERE")
		w.expression()
	}
	if w.chance(6) {
		w.put("GROUP", "BY", w.pick("a", "ROLLUP ( a , b )", "GROUPING SETS ( ( a ) , ( ) )", "CUBE ( ( abs ( a ) ) )", "ROLLUP ( ( writes ( 1 ) ) )"))
	}
	if w.chance(5) {
		w.put("ORDER", "BY")
		w.expression()
		w.put(w.pick("", "DESC", "NULLS FIRST", "USING >"))
	}
	if w.chance(8) {
		w.put("LIMIT", "(")
		w.expression()
		w.put(")")
	}
	if w.chance(12) {
		w.put("FOR", w.pick("UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE"), w.pick("", "OF t", "NOWAIT", "SKIP LOCKED"))
	}
}

func (w *writer) from() {
	if w.depth <= 0 {
		w.put(w.table())
		return
	}
	switch rapid.IntRange(0, 7).Draw(w.t, "from") {
	case 0:
		w.put(w.pick("", "LATERAL"), "(")
		w.query()
		w.put(")", w.pick("AS x", "x ( a , b )", "AS \"x y\" ( a )", "writes ( a )"))
	case 1:
		w.call2()
	case 2:
		w.put("ROWS", "FROM", "(")
		w.list(w.call2, 2)
		w.put(")", "AS", "r", "(", "a", ",", "b", ")")
	case 3:
		w.put(w.table(), w.pick("JOIN", "LEFT JOIN", "FULL OUTER JOIN"), w.table(), "j", "ON", "(")
		w.expression()
		w.put(")")
	case 4:
		w.put("t", "TABLESAMPLE", w.pick("system", "bernoulli"), "(", "10", ")")
	default:
		w.put(w.pick("", "ONLY"), w.table(), w.pick("", "AS q", "q", "q ( a , b )", "abs ( a )"))
	}
}

// call2 is a call without OVER and the like.
func (w *writer) call2() {
	w.put(w.function(), "(")
	if !w.chance(4) {
		w.list(w.expression, 2)
	}
	w.put(")")
}
