package session

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/wirefence/wirefence/proxy/internal/sqlscan"
)

// marker stands in every row that the client must not see.
const marker = "of the proxy's own"

// alphabet is all the SQL that clients of the model send, and what it does.
var alphabet map[string]behaviour

// texts are the alphabet's, in a fixed order.
var texts []string

func init() {
	alphabet = map[string]behaviour{
		"SELECT 1":                            reading("1"),
		"SELECT two":                          reading("1", "2"),
		"SELECT fails":                        failing("22012"),
		"SHOW x":                              reading("x"),
		decoy:                                 reading("decoy"),
		"INSERT INTO t VALUES (1)":            writing("INSERT 0 1"),
		"INSERT INTO t VALUES (2)":            writing("INSERT 0 1"),
		"INSERT INTO fails VALUES (1)":        failing("23505"),
		"UPDATE t SET a = 1 RETURNING a":      writing("UPDATE 2", "1", "1"),
		"SELECT write()":                      writing("SELECT 1", "written"),
		"COPY t FROM STDIN":                   copyIn,
		"COPY fails FROM STDIN":               failing("42P01"),
		"CALL p()":                            procedure,
		"CREATE INDEX CONCURRENTLY i ON t(a)": alone("CREATE INDEX", true),
		"VACUUM t":                            alone("VACUUM", false),
		"DISCARD ALL":                         discards,
		"BEGIN":                               begins,
		"COMMIT":                              commits,
		"COMMIT AND CHAIN":                    chains,
		"ROLLBACK":                            rollsBack,
		"SAVEPOINT s":                         saves,
		"ROLLBACK TO s":                       rollsBackTo,
		"RELEASE s":                           releases,
		"SET wirefence.token = 'a=1'":         sets("a=1"),
		"SET wirefence.token = 'a=3'":         sets("a=3"),
		"SET wirefence.token = 'a=2,b=1'":     sets("a=2,b=1"),
		"SET wirefence.token = ''":            sets(""),
		"SET LOCAL wirefence.token = 'a=3'":   setsLocal("a=3"),
		"SET LOCAL wirefence.token = ''":      setsLocal(""),
		"SELECT set_config('wirefence.token', 'b=1', false)":                            then(sets("b=1"), "set"),
		"INSERT INTO t SELECT set_config('wirefence.token', 'a=1', false)":              enters("a=1"),
		"INSERT INTO t SELECT set_config('wirefence.token', 'a=3', false)":              enters("a=3"),
		"DO 'perform set_config(''wirefence.token'', ''b=1'', false), write()'":         enters("b=1"),
		"PREPARE p AS INSERT INTO t SELECT set_config('wirefence.token', 'a=1', false)": prepares("INSERT INTO t SELECT set_config('wirefence.token', 'a=1', false)"),
		"SELECT enter()": func(b *backend, carried []string) result {
			if !b.policy.setters {
				return result{code: "42883"}
			}
			return then(enters("a=3"), "entered")(b, carried)
		},
		"RESET wirefence.token":                         resets,
		"RESET ALL":                                     resetsAll,
		"SELECT setter()":                               setter,
		"SET standard_conforming_strings = off":         escaping(true),
		"SET standard_conforming_strings = on":          escaping(false),
		`SELECT '\'`:                                    reading(`\`),
		ambiguous:                                       reading("a literal"),
		"PREPARE p AS INSERT INTO t VALUES (1)":         prepares("INSERT INTO t VALUES (1)"),
		"PREPARE p AS SELECT 1":                         prepares("SELECT 1"),
		"EXECUTE p":                                     executes,
		"DEALLOCATE p":                                  deallocates,
		"DEALLOCATE ALL":                                func(b *backend, _ []string) result { clear(b.statements); return result{tag: "DEALLOCATE ALL"} },
		"DECLARE c CURSOR FOR SELECT write()":           declares("c", false),
		"DECLARE h CURSOR WITH HOLD FOR SELECT write()": declares("h", true),
		"FETCH c":                                       fetches("c"),
		"FETCH h":                                       fetches("h"),
	}
	texts = slices.Sorted(maps.Keys(alphabet))
}

// ambiguous is one statement where backslashes escape, and else two.
const ambiguous = `SELECT '\'; INSERT INTO t VALUES (2); --'` + "\n"

const decoy = `SELECT '/*wirefence.token=''a=3''*/'`

// comments are the fences that a text may carry, of which some are stale, and
// one can't be read.
var comments = []string{
	"/*wirefence.token='a=1'*/", "/*wirefence.token='a=1'*/", "/*wirefence.token='a=3'*/",
	"/*wirefence.token='a=2'*/", "/*wirefence.token='b=1'*/", "/*wirefence.token='b=1,a=1'*/", "/*wirefence.token='a='*/",
}

var fenceComment = regexp.MustCompile(`/\*wirefence\.token='([^']*)'\*/`)

// split returns the statements of a text and the pairs of the fences in its
// comments.
func (b *backend) split(text string) (statements, carried []string) {
	if b.internal(text) != nil {
		return []string{text}, nil
	}
	hide := strings.NewReplacer(decoy, "<decoy>", ambiguous, "<ambiguous>")
	if !b.escapes {
		hide = strings.NewReplacer(decoy, "<decoy>", " --'\n", "")
	}
	text = hide.Replace(text)
	for _, m := range fenceComment.FindAllStringSubmatch(text, -1) {
		carried = append(carried, strings.Split(m[1], ",")...)
	}
	show := strings.NewReplacer("<decoy>", decoy, "<ambiguous>", ambiguous)
	for sql := range strings.SplitSeq(fenceComment.ReplaceAllString(text, ""), ";") {
		if sql = strings.TrimSpace(sql); sql != "" {
			statements = append(statements, show.Replace(sql))
		}
	}
	return statements, carried
}

// known reports whether a statement has no syntax error.
func (b *backend) known(sql string) bool {
	if _, ok := alphabet[sql]; ok {
		return sql != `SELECT '\'` || !b.escapes
	}
	return b.internal(sql) != nil
}

func (b *backend) hasColumns(sql string) bool {
	return strings.HasPrefix(strings.ToUpper(sql), "SELECT") || strings.HasPrefix(sql, "--") || strings.Contains(sql, "RETURNING") || strings.HasPrefix(sql, "FETCH")
}

// aborted reports whether a statement can't run since the transaction failed.
func (b *backend) aborted(sql string) bool {
	return b.tx.block == 'E' && !strings.HasPrefix(sql, "COMMIT") && !strings.HasPrefix(sql, "ROLLBACK")
}

// run runs one statement in the transaction that has begun.
func (b *backend) run(st preparedText, parameters []*string) result {
	if b.aborted(st.text) {
		return result{code: "25P02"}
	}
	if what := b.internal(st.text); what != nil {
		return what(parameters)
	}
	return alphabet[st.text](b, st.carried)
}

// internal returns what the model does at SQL of the proxy's own; nil for any
// other.
func (b *backend) internal(sql string) func(parameters []*string) result {
	for text, columns := range map[string][]string{
		loginSQL: {b.token.now(), marker}, variableSQL: {b.token.now()}, sqlscan.StampQuery: {marker}, sqlscan.CatalogQuery: {b.catalog()},
	} {
		if sql != strings.TrimSpace(text) {
			continue
		}
		return func([]*string) result {
			if b.policy.failing && b.tx.block == 0 && b.dice.n(4) == 1 {
				return result{code: "42501"}
			}
			if text == loginSQL && !b.policy.schema {
				columns[1] = null
			}
			return result{tag: "SELECT 1", columns: true, rows: [][]string{columns}}
		}
	}
	call, ok := strings.CutPrefix(sql, "SELECT wirefence.check(")
	observes := false
	if !ok {
		call, observes = strings.CutPrefix(sql, "SELECT wirefence.observe(")
	}
	const unlessSet = "CASE WHEN pg_catalog.current_setting('wirefence.token', true) OPERATOR(pg_catalog.<>) '' THEN NULL ELSE "
	argument, tail, _ := strings.Cut(call, ", NULL, ")
	tail, behind := strings.CutSuffix(tail, " WHERE pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL")
	required := tail == "true)"
	if !ok && !observes || !required && tail != "false)" {
		return nil
	}
	return func(parameters []*string) result {
		if !b.policy.schema {
			return result{code: "42883"}
		}
		if behind && !b.tx.wrote {
			return result{tag: "SELECT 0", columns: true}
		}
		fence := b.token.now()
		stamp, stamps := strings.CutPrefix(argument, unlessSet)
		switch {
		case strings.HasPrefix(argument, "'"):
			fence = strings.Trim(argument, "'")
		case len(parameters) > 0 && parameters[0] != nil:
			fence = *parameters[0]
		case argument == "COALESCE($1, "+unlessSet+"$2 END)" && fence == "" && parameters[1] != nil:
			fence = *parameters[1]
		case stamps && fence == "":
			fence = strings.Trim(strings.TrimSuffix(stamp, " END"), "'")
		}
		code := b.check(fence, required)
		r := result{tag: "SELECT 1", columns: true, rows: [][]string{{marker}}}
		switch {
		case code != "" && observes:
			r.rows[0][0] = code + ": " + marker
		case code != "":
			return result{code: code}
		}
		return r
	}
}

// check is wirefence.check: token 1 is current, 3 is stale, and 2 is superseded
// at any moment.
func (b *backend) check(fence string, required bool) (code string) {
	if fence == "" {
		if required {
			return "WF002"
		}
		return ""
	}
	pairs := strings.Split(fence, ",")
	for _, pair := range pairs {
		if strings.HasSuffix(pair, "=3") || strings.HasSuffix(pair, "=2") && b.dice.n(3) == 1 {
			return "WF001"
		}
	}
	for _, pair := range pairs {
		b.tx.checked[pair] = true
		b.tx.owed = slices.DeleteFunc(slices.Clone(b.tx.owed), func(owed string) bool { return owed == pair })
		b.tx.stamped = b.tx.stamped || strings.HasPrefix(pair, "lease=")
	}
	return ""
}

func (b *backend) catalog() string {
	text := "sabs\nsset_config\nuwrite\npp\n"
	if b.policy.setters {
		text += "ssetter\nxsetter\nuenter\nxenter\n"
	}
	if b.policy.schema {
		text += "w\n"
	}
	return text + "."
}
