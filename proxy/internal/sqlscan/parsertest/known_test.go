package parsertest

import (
	"context"
	_ "embed"
	"strings"

	"github.com/jackc/pgx/v5"
	pgquery "github.com/pganalyze/pg_query_go/v6"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

//go:embed testdata/known.sql
var knownQuery string

// harmlessText names the functions of PostgreSQL that are volatile and yet write
// nothing, with the reasons.
//
//go:embed testdata/harmless.txt
var harmlessText string

func harmless() []string {
	var names []string
	for line := range strings.Lines(harmlessText) {
		if !strings.HasPrefix(line, "#") {
			names = append(names, strings.Fields(line)...)
		}
	}
	return names
}

// known is what a database knows of names. What a view, a policy, a domain or an
// argument's default does is judged by its own tree.
type known struct {
	functions map[string]bool // whether one of that name may write
	fields    map[string]bool // functions that row.name calls, and that may write
	operators map[string]bool // those that may write
	types     map[string]bool
	texts     map[text]string // SQL, as far as it isn't judged
	givers    map[string]bool // views and tables of which a read is given a transaction id
}

// text is a thing whose SQL the database keeps.
type text struct{ kind, name string }

func readKnown(ctx context.Context, conn *pgx.Conn) (*known, error) {
	rows, err := conn.Query(ctx, knownQuery, harmless())
	if err != nil {
		return nil, err
	}
	k := &known{functions: map[string]bool{}, fields: map[string]bool{}, operators: map[string]bool{}, types: map[string]bool{}, texts: map[text]string{},
		givers: map[string]bool{}}
	for rows.Next() {
		var kind, name string
		var says *string // an object may be dropped at this moment
		if err := rows.Scan(&kind, &name, &says); err != nil {
			return nil, err
		}
		if says == nil {
			continue
		}
		switch kind {
		case "f":
			k.functions[name] = k.functions[name] || *says != ""
		case "u":
			k.fields[name] = true
		case "t":
			k.givers[name] = true
		case "o":
			k.operators[name] = true
		case "c":
			k.types[name] = true
		case "v":
			k.texts[text{kind, name}] += strings.TrimSuffix(*says, ";") + ";"
			k.givers[name] = strings.Contains(*says, "txid_current") || strings.Contains(*says, "pg_current_xact_id")
		default: // an expression, or several with commas
			k.texts[text{kind, name}] += "SELECT " + *says + ";"
		}
	}
	return k, rows.Err()
}

// givesID reports whether a read is given a transaction id, though it changes
// nothing: it asks for one, or it reads a temporary table, which may be one that is
// emptied at each commit.
func (k *known) givesID(query proto.Message) (gives bool) {
	walk(query.ProtoReflect(), func(node protoreflect.ProtoMessage) {
		switch n := node.(type) {
		case *pgquery.FuncCall:
			name := lastName(n.Funcname)
			gives = gives || name == "txid_current" || name == "pg_current_xact_id"
		case *pgquery.RangeVar:
			gives = gives || k.givers[n.Relname]
		}
	})
	return gives
}

func (k *known) function(name string) string {
	switch writes, ok := k.functions[name]; {
	case !ok:
		return "an unknown function: " + name
	case writes:
		return "a volatile function: " + name
	}
	return k.text(text{"e", name}, "a function's defaults: ")
}

func (k *known) operator(name string) string {
	if k.operators[name] {
		return "a volatile operator: " + name
	}
	return ""
}

func (k *known) field(name string) string {
	if k.fields[name] {
		return "a volatile function as a field: " + name
	}
	return ""
}

func (k *known) relation(name string) string {
	if why := k.text(text{"v", name}, "a view: "); why != "" {
		return why
	}
	return k.text(text{"p", name}, "a policy: ")
}

func (k *known) typeName(name string) string {
	if k.types[name] {
		return "a volatile conversion: " + name
	}
	return k.text(text{"d", name}, "a domain: ")
}

// text judges the SQL of a thing, and forgets it if it doesn't write. A server
// shows some things in a way that no grammar takes back (a CYCLE clause with a
// typed literal); of those nothing is known.
func (k *known) text(t text, kind string) string {
	sql := k.texts[t]
	if sql == "" {
		return ""
	}
	delete(k.texts, t) // it may be recursive
	trees, err := Parse(sql, false)
	if err != nil {
		return ""
	}
	for _, tree := range trees {
		if len(effects(tree.Stmt, k)) > 0 {
			k.texts[t] = sql
			return kind + t.name
		}
	}
	return ""
}
