package sqlscan

import (
	"bytes"
	_ "embed"
	"fmt"
	"strings"
)

// CatalogQuery asks a database for what ParseCatalog reads: one row with one
// column of text, which is not null. Any role may run it; it depends on no
// setting of the session. Names beyond ASCII, which are never taken for known, are
// not in it.
//
//go:embed catalog.sql
var CatalogQuery string

// StampQuery asks for a text that changes when the answer to CatalogQuery may
// have. It costs a fraction of it.
//
//go:embed stamp.sql
var StampQuery string

// flags says what a name of the catalog may do.
type flags uint8

const (
	isSafe      flags = 1 << iota // every function of this name is harmless
	isUnsafe                      // some function of this name may write
	isSetter                      // a function that may set wirefence.token
	isRelation                    // a view or a table whose reading may write
	isType                        // a type to which a conversion may write
	isField                       // row.name may call a function that may write
	isProcedure                   // some procedure has this name

	isFunction = isSafe | isUnsafe | isProcedure
)

// Catalog is what a database's catalog says of names. It is immutable and safe
// for concurrent use. A nil Catalog knows only a few built-in functions.
type Catalog struct {
	names     map[string]flags
	operators map[string]bool // those that may write
	marked    bool            // some name has a flag besides isFunction
	setters   bool
	schema    bool // fences can be checked
	reads     bool // are checked
	all       bool // every query may write
}

// HasSetters reports whether some function of a user may set wirefence.token.
// Then whatever writes, or reads what users have made, may come to call it: by a
// trigger, a default, a rule, an operator, a view. A statement is marked as a
// Setter only where it names such a function; and Mentions doesn't tell which
// texts need no scan.
func (c *Catalog) HasSetters() bool { return c != nil && c.setters }

// HasSchema reports whether the database has the function that checks a fence.
func (c *Catalog) HasSchema() bool { return c != nil && c.schema }

// ChecksReads reports whether some resource has reads = check, so that reads that
// carry a fence are to be checked.
func (c *Catalog) ChecksReads() bool { return c != nil && c.reads }

// ParseCatalog reads the text that CatalogQuery returns: a line for each name,
// of which the first byte says what is known of it:
//
//	s  a function of this name is harmless
//	u  some function of this name may write
//	p  a procedure's name
//	x  a function that may set wirefence.token
//	r  a view or a table whose reading may write
//	t  a type to which a conversion may write, by its name in pg_type
//	f  as u, and row.name may call it
//	o  an operator that may write
//	!  every query may write: what does so needs no mention
//	w  fences can be checked: wirefence.check is there
//	c  reads are checked
//
// A name may stand on several lines, and u outweighs s.
// The last line is a full stop, so that a cut text is noticed.
func ParseCatalog(text []byte) (*Catalog, error) {
	whole, ok := bytes.CutSuffix(text, []byte("\n."))
	if !ok {
		return nil, fmt.Errorf("the catalog's text of %d bytes has no end", len(text))
	}
	lines := string(whole)
	c := &Catalog{names: make(map[string]flags, strings.Count(lines, "\n")+1), operators: map[string]bool{}}
	for line := range strings.SplitSeq(lines, "\n") {
		if line == "" {
			continue
		}
		if err := c.add(line[0], line[1:]); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *Catalog) add(kind byte, name string) error {
	var f flags
	switch kind {
	case 's':
		f = isSafe
	case 'u':
		f = isUnsafe
	case 'p':
		f = isProcedure
	case 'x':
		f, c.setters = isSetter, true
	case 'r':
		f = isRelation
	case 't':
		f = isType
	case 'f':
		f = isField | isUnsafe
	case 'o':
		c.operators[name] = true
		c.all = c.all || hidden[name]
		return nil
	case '!':
		c.all = true
		return nil
	case 'w':
		c.schema = true
		return nil
	case 'c':
		c.reads = true
		return nil
	default:
		return fmt.Errorf("the catalog's text has a line of an unknown kind %q", kind)
	}
	c.marked = c.marked || f&^isFunction != 0
	f |= c.names[name]
	if f&isUnsafe != 0 {
		f &^= isSafe
	}
	c.names[name] = f
	if kind == 't' {
		for _, alias := range aliases[name] {
			c.names[alias] |= isType
		}
	}
	return nil
}

// aliases holds the words by which the grammar calls built-in types, without
// those that follow them.
var aliases = map[string][]string{
	"bool": {"boolean"}, "int2": {"smallint"}, "int4": {"int", "integer"}, "int8": {"bigint"},
	"float4": {"real", "float"}, "float8": {"double", "float"}, "numeric": {"decimal", "dec"},
	"bpchar": {"char", "character", "nchar", "national"}, "varchar": {"char", "character", "nchar", "national"},
	"varbit": {"bit"}, "timetz": {"time"}, "timestamptz": {"timestamp"},
}

// hidden holds the operators that syntax stands for: LIKE, BETWEEN, IN, CASE,
// ORDER BY and so on.
var hidden = map[string]bool{
	"=": true, "<>": true, "<": true, ">": true, "<=": true, ">=": true,
	"~~": true, "!~~": true, "~~*": true, "!~~*": true, "~": true, "!~": true,
}

// function says what is known of the functions of a name; 0 is nothing.
func (c *Catalog) function(name []byte) flags {
	if c == nil {
		return builtin[string(name)]
	}
	return c.names[string(name)]
}

// builtin is what is known without a catalog: functions of pg_catalog which
// nobody shadows by accident, and words of the syntax.
var builtin = func() map[string]flags {
	m := map[string]flags{}
	for _, name := range strings.Fields(`abs array_agg array_length avg btrim ceil char_length concat
		concat_ws count current_database current_schema current_schemas current_setting date_part
		date_trunc every extract floor format format_type generate_series has_table_privilege
		json_agg json_build_object jsonb_agg jsonb_build_object length like lower lpad ltrim max md5 min mod now
		obj_description octet_length pg_backend_pid pg_encoding_to_char pg_get_constraintdef
		pg_get_expr pg_get_indexdef pg_get_userbyid pg_get_viewdef pg_is_in_recovery
		pg_table_is_visible pg_typeof quote_ident quote_literal rank regexp_replace replace round
		row_number row_to_json rpad rtrim set_config split_part string_agg strpos substr sum
		to_char to_date to_timestamp unnest upper version`) {
		m[name] = isSafe
	}
	for _, name := range strings.Fields(`columns content document escape exclude first groups json
		json_array json_arrayagg json_exists json_object json_objectagg json_query json_scalar
		json_serialize json_table json_value key merge_action nested next normalize of operator partition
		passing path range repeatable rows second value zone`) {
		m[name] |= isUnsafe // may as well be a function's name
	}
	return m
}()
