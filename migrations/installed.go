package migrations

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// installed is what the migrations create, read from their own text, so that nothing has to be
// listed twice. It knows the statements that they use: CREATE and DROP of functions, tables,
// views and sequences, CREATE TRIGGER, and GRANT.
type installed struct {
	functions map[string]*function // by signature
	relations map[string]string    // the statements that create them, by name
	triggers  map[string]string    // the same, by table and name
	grants    []grant
}

// function is a function as CREATE FUNCTION defines it.
type function struct {
	signature string   // wirefence.name(type, …)
	statement string   // CREATE OR REPLACE FUNCTION …
	bodies    []string // the text between the quotes, or the expression after RETURN; and the bodies that replace it at run time
	parsed    bool     // the body is an expression after RETURN, which PostgreSQL keeps as a tree
	definer   bool
	strict    bool
	volatile  string // i, s or v, as in pg_proc
	settings  []string
}

// grant is a right on one object, to one role or to PUBLIC.
type grant struct{ right, object, role string }

func (g grant) statement() string {
	return fmt.Sprintf("GRANT %s ON %s TO %s", g.right, g.object, g.role)
}

var (
	functionHead = regexp.MustCompile(`(?s)^CREATE\s+(?:OR\s+REPLACE\s+)?FUNCTION\s+(wirefence\.\w+)\s*\(`)
	functionDrop = regexp.MustCompile(`(?s)^DROP\s+FUNCTION\s+(?:IF\s+EXISTS\s+)?(wirefence\.\w+\(.*\))$`)
	relationHead = regexp.MustCompile(`^CREATE\s+(?:OR\s+REPLACE\s+)?(?:UNLOGGED\s+)?(?:TABLE|VIEW|SEQUENCE)\s+(?:IF\s+NOT\s+EXISTS\s+)?(wirefence\.\w+)`)
	relationDrop = regexp.MustCompile(`^DROP\s+(?:TABLE|VIEW|SEQUENCE)\s+(?:IF\s+EXISTS\s+)?(wirefence\.\w+)`)
	triggerHead  = regexp.MustCompile(`(?s)^CREATE\s+TRIGGER\s+(\w+)\s.*?\sON\s+(wirefence\.\w+)\s`)
	grantForm    = regexp.MustCompile(`(?s)^GRANT\s+(.+?)\s+ON\s+(FUNCTION\s+|SEQUENCE\s+|SCHEMA\s+|TABLE\s+)?(.+?)\s+TO\s+(\w+)$`)
	settingForm  = regexp.MustCompile(`(?s)\bSET\s+(\w+)\s*(?:=|TO)\s*(.+?)\s*$`)
	replacement  = regexp.MustCompile(`CREATE OR REPLACE FUNCTION (wirefence\.\w+\(\)) RETURNS [^;]*?\sRETURN ([^;]+);`)
	parameter    = regexp.MustCompile(`(?s)^(?:(IN|OUT|INOUT|VARIADIC)\s+)?("[^"]+"|\w+)\s+(.+?)(?:\s+DEFAULT\s.*)?$`)
)

// readInstalled reads the text of the migrations, in order.
func readInstalled(sql string) (*installed, error) {
	in := &installed{functions: map[string]*function{}, relations: map[string]string{}, triggers: map[string]string{}}
	for _, statement := range statements(sql) {
		switch {
		case functionHead.MatchString(statement):
			f, err := readFunction(statement)
			if err != nil {
				return nil, err
			}
			in.functions[f.signature] = f
		case functionDrop.MatchString(statement):
			dropped := oneLine(functionDrop.FindStringSubmatch(statement)[1])
			delete(in.functions, dropped)
			in.forget("FUNCTION " + dropped)
		case relationHead.MatchString(statement):
			in.relations[relationHead.FindStringSubmatch(statement)[1]] = statement
		case relationDrop.MatchString(statement):
			dropped := relationDrop.FindStringSubmatch(statement)[1]
			delete(in.relations, dropped)
			in.forget("TABLE " + dropped)
		case triggerHead.MatchString(statement):
			m := triggerHead.FindStringSubmatch(statement)
			in.triggers[m[2]+" "+m[1]] = statement
		case grantForm.MatchString(statement):
			in.grants = append(in.grants, readGrants(statement)...)
		}
		in.readReplacements(statement)
	}
	return in, nil
}

// readReplacements reads the functions that a block or a function replaces. The replacement is
// also the remedy for a function that was changed, because it refuses more than the original.
func (in *installed) readReplacements(statement string) {
	for _, m := range replacement.FindAllStringSubmatch(statement, -1) {
		if f := in.functions[m[1]]; f != nil {
			f.bodies, f.statement = append(f.bodies, m[2]), oneLine(strings.TrimSuffix(m[0], ";"))
		}
	}
}

// forget removes the grants of an object that was dropped.
func (in *installed) forget(object string) {
	in.grants = slices.DeleteFunc(in.grants, func(g grant) bool { return g.object == object })
}

func readFunction(statement string) (*function, error) {
	head := functionHead.FindStringSubmatch(statement)
	name, rest := head[1], statement[len(head[0]):]
	end := closing(rest)
	if end < 0 {
		return nil, fmt.Errorf("migrations: the parameters of %s have no end", name)
	}
	f := &function{volatile: "v"}
	var types []string
	for _, text := range split(rest[:end]) {
		m := parameter.FindStringSubmatch(oneLine(text))
		if m == nil {
			return nil, fmt.Errorf("migrations: the parameter %q of %s can't be read", text, name)
		}
		if m[1] != "OUT" {
			types = append(types, m[3])
		}
	}
	f.signature = name + "(" + strings.Join(types, ", ") + ")"
	f.statement = "CREATE OR REPLACE FUNCTION " + name + "(" + rest
	return f, f.readAttributes(rest[end+1:])
}

// bodyHead matches the end of the attributes of a function: AS and a quote, or RETURN.
var bodyHead = regexp.MustCompile(`(?s)\bAS\s+(\$\w*\$|')|\bRETURN\s`)

func (f *function) readAttributes(text string) error {
	at := bodyHead.FindStringSubmatchIndex(text)
	if at == nil {
		return fmt.Errorf("migrations: %s has no body", f.signature)
	}
	attributes, body := oneLine(text[:at[0]]), text[at[1]:]
	switch quote := ""; {
	case at[2] < 0:
		f.bodies, f.parsed = []string{strings.TrimSpace(body)}, true
	default:
		quote = text[at[2]:at[3]]
		text := strings.TrimSuffix(strings.TrimRight(body, " \n"), quote)
		if quote == "'" {
			text = strings.ReplaceAll(text, "''", "'")
		}
		f.bodies = []string{text}
	}
	for word, value := range map[string]string{"IMMUTABLE": "i", "STABLE": "s"} {
		if strings.Contains(attributes, " "+word) {
			f.volatile = value
		}
	}
	f.definer = strings.Contains(attributes, "SECURITY DEFINER")
	f.strict = strings.Contains(attributes, " STRICT")
	for i, part := range strings.Split(attributes, " SET ") {
		if i == 0 {
			continue
		}
		m := settingForm.FindStringSubmatch("SET " + part)
		if m == nil {
			return fmt.Errorf("migrations: the setting %q of %s can't be read", part, f.signature)
		}
		f.settings = append(f.settings, m[1]+"="+strings.Trim(m[2], "'"))
	}
	return nil
}

func readGrants(statement string) (all []grant) {
	m := grantForm.FindStringSubmatch(statement)
	kind := strings.TrimSpace(m[2])
	if kind == "" || kind == "SEQUENCE" { // names of relations are unique across their kinds
		kind = "TABLE"
	}
	for _, right := range split(m[1]) {
		for _, object := range split(m[3]) {
			all = append(all, grant{oneLine(right), kind + " " + oneLine(object), m[4]})
		}
	}
	return all
}

// oneLine replaces all white space between words by single spaces.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// split splits a list at its commas, except those in parentheses.
func split(list string) (parts []string) {
	depth, begin := 0, 0
	for i := range len(list) {
		switch list[i] {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth == 0 {
				parts = append(parts, strings.TrimSpace(list[begin:i]))
				begin = i + 1
			}
		}
	}
	if last := strings.TrimSpace(list[begin:]); last != "" {
		parts = append(parts, last)
	}
	return parts
}

// closing returns the index of the parenthesis that closes the one before the text, -1 if there
// is none.
func closing(text string) int {
	depth := 1
	for i := range len(text) {
		switch text[i] {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

// opaque matches the parts of SQL text in which a semicolon ends no statement.
var opaque = regexp.MustCompile(`--[^\n]*|'(?:[^']|'')*'|"[^"]*"|\$\w*\$`)

// statements splits SQL text at its semicolons and leaves out the comments between statements.
func statements(sql string) (all []string) {
	var b strings.Builder
	end := func() {
		if text := strings.TrimSpace(b.String()); text != "" {
			all = append(all, text)
		}
		b.Reset()
	}
	for sql != "" {
		at := opaque.FindStringIndex(sql)
		semicolon := strings.IndexByte(sql, ';')
		switch {
		case semicolon >= 0 && (at == nil || semicolon < at[0]):
			b.WriteString(sql[:semicolon])
			sql = sql[semicolon+1:]
			end()
			continue
		case at == nil:
			b.WriteString(sql)
			sql = ""
			continue
		}
		b.WriteString(sql[:at[0]])
		found := sql[at[0]:at[1]]
		sql = sql[at[1]:]
		switch {
		case strings.HasPrefix(found, "--"):
		case found[0] == '$':
			length := strings.Index(sql, found) + len(found)
			b.WriteString(found + sql[:length])
			sql = sql[length:]
		default:
			b.WriteString(found)
		}
	}
	end()
	return all
}
