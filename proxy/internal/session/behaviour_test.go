package session

import (
	"slices"
	"strings"
)

// result is what one statement brings.
type result struct {
	code    string // the SQLSTATE of an error, else ""
	tag     string
	columns bool
	rows    [][]string
	copyIn  bool
	ends    bool // the statement commits by itself
}

// behaviour is what the model does at a statement.
type behaviour func(b *backend, carried []string) result

func reading(rows ...string) behaviour {
	return func(*backend, []string) result {
		r := result{tag: "SELECT", columns: true}
		for _, text := range rows {
			r.rows = append(r.rows, []string{text})
		}
		return r
	}
}

func failing(code string) behaviour {
	return func(*backend, []string) result { return result{code: code} }
}

func writing(tag string, rows ...string) behaviour {
	return func(b *backend, carried []string) result {
		b.write(tag, carried)
		r := reading(rows...)(b, nil)
		r.tag, r.columns = tag, len(rows) > 0
		return r
	}
}

func then(do behaviour, text string) behaviour {
	return func(b *backend, carried []string) result {
		do(b, carried)
		return reading(text)(b, nil)
	}
}

func copyIn(b *backend, carried []string) result {
	b.write("COPY", carried)
	return result{copyIn: true}
}

// isolated reports whether a transaction block is around a statement, of the
// client's or an implicit one.
func (b *backend) isolated() bool { return b.tx.block == 0 && !b.multi }

// procedure writes, commits, and writes again: up to version 17 also in the
// middle of a batch.
func procedure(b *backend, carried []string) result {
	b.write("CALL", carried)
	if !b.isolated() || b.extended && b.major >= 18 && b.tx.piped {
		return result{code: "2D000"}
	}
	b.commit()
	b.begin()
	b.write("CALL behind its COMMIT", carried)
	return result{tag: "CALL"}
}

// alone is a command that runs in no transaction block.
func alone(tag string, write bool) behaviour {
	return func(b *backend, carried []string) result {
		if !b.isolated() || b.tx.piped {
			return result{code: "25001"}
		}
		if write {
			b.write(tag, carried)
		}
		return result{tag: tag, ends: true}
	}
}

func discards(b *backend, carried []string) result {
	r := alone("DISCARD ALL", false)(b, carried)
	if r.code == "" {
		resetsAll(b, nil)
		clear(b.statements)
		clear(b.cursors)
	}
	return r
}

func sets(value string) behaviour {
	return func(b *backend, _ []string) result {
		b.token = setting{value: value}
		return result{tag: "SET"}
	}
}

func setsLocal(value string) behaviour {
	return func(b *backend, _ []string) result {
		b.token.local = &value
		return result{tag: "SET"}
	}
}

func resets(b *backend, _ []string) result {
	b.token = setting{value: b.initial}
	return result{tag: "RESET"}
}

func resetsAll(b *backend, _ []string) result {
	b.token, b.escapes = setting{value: b.initial}, false
	return result{tag: "RESET"}
}

// enters sets the variable and writes by it, all in one statement: what it has set
// must be checked behind it, but where it carries the fence of a comment.
func enters(value string) behaviour {
	return func(b *backend, carried []string) result {
		const what = "a write that sets its own fence"
		b.write(what, carried)
		b.token = setting{value: value}
		if len(carried) == 0 && b.policy.schema {
			b.tx.owed = append(slices.Clone(b.tx.owed), strings.Split(value, ",")...)
		}
		return result{tag: "INSERT 0 1"}
	}
}

// setter is a function that nothing but the catalog tells of.
func setter(b *backend, _ []string) result {
	if !b.policy.setters {
		return result{code: "42883"}
	}
	b.token = setting{value: "a=3"}
	return reading("set")(b, nil)
}

func escaping(on bool) behaviour {
	return func(b *backend, _ []string) result {
		b.escapes = on
		return result{tag: "SET"}
	}
}

func prepares(sql string) behaviour {
	return func(b *backend, carried []string) result {
		if _, exists := b.statements["p"]; exists {
			return result{code: "42P05"}
		}
		b.statements["p"] = preparedText{sql, carried}
		return result{tag: "PREPARE"}
	}
}

// executes runs a prepared statement, whose fence adds to its own.
func executes(b *backend, carried []string) result {
	st, ok := b.statements["p"]
	if !ok {
		return result{code: "26000"}
	}
	if !strings.HasPrefix(st.text, "INSERT") && !strings.HasPrefix(st.text, "SELECT") && !strings.HasPrefix(st.text, "UPDATE") {
		return result{code: "42601"}
	}
	return alphabet[st.text](b, slices.Concat(carried, st.carried))
}

func deallocates(b *backend, _ []string) result {
	if _, ok := b.statements["p"]; !ok {
		return result{code: "26000"}
	}
	delete(b.statements, "p")
	return result{tag: "DEALLOCATE"}
}

func declares(name string, hold bool) behaviour {
	return func(b *backend, carried []string) result {
		if b.tx.block == 0 {
			return result{code: "25P01"}
		}
		if _, exists := b.cursors[name]; exists {
			return result{code: "42P03"}
		}
		b.cursors[name] = cursor{hold, b.effective(carried)}
		return result{tag: "DECLARE CURSOR"}
	}
}

func fetches(name string) behaviour {
	return func(b *backend, carried []string) result {
		c, ok := b.cursors[name]
		if !ok {
			return result{code: "34000"}
		}
		b.write("FETCH", first(c.carried, carried))
		return reading("fetched")(b, nil)
	}
}

// first is the first of two lists that isn't empty.
func first(a, b []string) []string {
	if len(a) > 0 {
		return a
	}
	return b
}
