package session

import (
	"maps"
	"regexp"
	"slices"
	"strings"
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
		"SHOW x":                              shows,
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
		"SET wirefence.token = ''":            sets(""),
		"SET LOCAL wirefence.token = ''":      setsLocal(""),
		"SELECT unlocker()":                   callsUnlocker,
		unlocking:                             unlocks,
		"PREPARE p AS " + unlocking:           prepares(unlocking),
		"DO 'perform pg_advisory_unlock_all(), write()'": func(b *backend, carried []string) result {
			r := writing("DO")(b, carried)
			b.unlockAll()
			return r
		},
		"BEGIN READ ONLY": beginsReadOnly,
		"SET TRANSACTION ISOLATION LEVEL SERIALIZABLE": isolates,
		"LOCK TABLE t":                                  locks,
		"PREPARE TRANSACTION 'x'":                       keeps,
		"COMMIT PREPARED 'x'":                           commitsKept,
		"RESET wirefence.token":                         resets,
		"RESET ALL":                                     resetsAll,
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
	for text, f := range fenced {
		for _, fence := range f.fences {
			alphabet[strings.Replace(text, "{}", fence, 1)] = f.behaviour(fence)
		}
	}
	texts = slices.Sorted(maps.Keys(alphabet))
	maps.Copy(alphabet, rare)
}

// fenced are texts with a fence in them, and the fences that are drawn for a single session.
var fenced = map[string]struct {
	behaviour func(fence string) behaviour
	fences    []string
}{
	"SET wirefence.token = '{}'":                        {sets, []string{"a=1", "a=3", "a=2,b=1"}},
	"SET LOCAL wirefence.token = '{}'":                  {setsLocal, []string{"a=3"}},
	"SELECT set_config('wirefence.token', '{}', false)": {setsOnly, []string{"b=1"}},
	entering: {enters, []string{"a=1", "a=3"}},
	enteringAlone + ", ''{}'', false), write()'": {enters, []string{"b=1"}},
	"PREPARE p AS " + entering:                   {func(fence string) behaviour { return prepares(strings.Replace(entering, "{}", fence, 1)) }, []string{"a=1"}},
}

const entering = "INSERT INTO t SELECT set_config('wirefence.token', '{}', false)"

// enteringAlone is a gap, if a release of all locks follows it in the same batch.
const enteringAlone = "DO 'perform set_config(''wirefence.token''"

var anyFence = regexp.MustCompile(`[ab]=\d+(,[ab]=\d+)*`)

// behaviourOf returns what the model does at a statement of a client's; nil for a syntax error.
func behaviourOf(sql string) behaviour {
	if does, ok := alphabet[sql]; ok {
		return does
	}
	fence := anyFence.FindString(sql)
	if f, ok := fenced[strings.Replace(sql, fence, "{}", 1)]; ok && fence != "" {
		return f.behaviour(fence)
	}
	return nil
}

// ambiguous is one statement where backslashes escape, and else two.
const ambiguous = `SELECT '\'; INSERT INTO t VALUES (2); --'` + "\n"

const unlocking = "SELECT pg_advisory_unlock_all()"

const decoy = `SELECT '/*wirefence.token=''a=3''*/'`

// comments are the fences that a text may carry, of which some are stale, and
// one can't be read.
var comments = []string{
	"/*wirefence.token='a=1'*/", "/*wirefence.token='a=1'*/", "/*wirefence.token='a=3'*/",
	"/*wirefence.token='a=2'*/", "/*wirefence.token='b=1'*/", "/*wirefence.token='o=1'*/", "/*wirefence.token='b=1,a=1'*/", "/*wirefence.token='a='*/",
}

// padding makes a text too long to be read.
var padding = regexp.MustCompile(`/\*x+\*/`)

var fenceComment = regexp.MustCompile(`/\*wirefence\.token='([^']*)'\*/`)

// split returns the statements of a text and the pairs of the fences in its
// comments.
func (b *backend) split(text string) (statements, carried []string) {
	if b.internal(text) != nil {
		return []string{text}, nil
	}
	text = padding.ReplaceAllString(text, "")
	if b.escapes {
		text = hideEscaped.Replace(text)
	} else {
		text = hide.Replace(text)
	}
	for _, m := range fenceComment.FindAllStringSubmatch(text, -1) {
		carried = append(carried, strings.Split(m[1], ",")...)
	}
	for sql := range strings.SplitSeq(fenceComment.ReplaceAllString(text, ""), ";") {
		if sql = strings.TrimSpace(sql); sql != "" {
			statements = append(statements, show.Replace(sql))
		}
	}
	return statements, carried
}

// What a split must not see, and back.
var (
	hide        = strings.NewReplacer(decoy, "<decoy>", " --'\n", "")
	hideEscaped = strings.NewReplacer(decoy, "<decoy>", ambiguous, "<ambiguous>")
	show        = strings.NewReplacer("<decoy>", decoy, "<ambiguous>", ambiguous)
)

// known reports whether a statement has no syntax error.
func (b *backend) known(sql string) bool {
	if behaviourOf(sql) != nil {
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
	return behaviourOf(st.text)(b, st.carried)
}
