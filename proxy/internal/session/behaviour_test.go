package session

import "strings"

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
	return func(b *backend, carried []string) result {
		b.looks()
		b.judge("a read", carried)
		r := result{tag: "SELECT", columns: true}
		for _, text := range rows {
			r.rows = append(r.rows, []string{text})
		}
		return r
	}
}

// shows is SHOW, which needs no fence.
func shows(*backend, []string) result {
	return result{tag: "SELECT", columns: true, rows: [][]string{{"x"}}}
}

func failing(code string) behaviour {
	return func(*backend, []string) result { return result{code: code} }
}

func writing(tag string, rows ...string) behaviour {
	return func(b *backend, carried []string) result {
		if code := b.write(tag, carried); code != "" {
			return result{code: code}
		}
		r := result{tag: tag, columns: len(rows) > 0}
		for _, text := range rows {
			r.rows = append(r.rows, []string{text})
		}
		return r
	}
}

func copyIn(b *backend, carried []string) result {
	return result{code: b.write("COPY", carried), copyIn: true}
}

// isolated reports whether a transaction block is around a statement, of the
// client's or an implicit one.
func (b *backend) isolated() bool { return b.tx.block == 0 && !b.multi }

// procedure writes, commits, and writes again: up to version 17 also in the
// middle of a batch.
func procedure(b *backend, carried []string) result {
	if code := b.write("CALL", carried); code != "" {
		return result{code: code}
	}
	if !b.isolated() || b.extended && b.major >= 18 && b.tx.piped {
		return result{code: "2D000"}
	}
	b.commit()
	b.takeover()
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
		// Behind a COMMIT of its batch it runs in no block, which the proxy can't see; and
		// behind a mere Parse it shares the transaction with that one's check.
		b.unlike = b.unlike || b.extended && b.ran || b.tx.snapshot
		r := result{tag: tag, ends: true}
		if write {
			r.code = b.write(tag, carried)
		}
		return r
	}
}

func discards(b *backend, carried []string) result {
	r := alone("DISCARD ALL", false)(b, carried)
	if r.code == "" {
		resetsAll(b, nil)
		clear(b.statements)
		clear(b.cursors)
		b.unlockAll()
	}
	return r
}

func sets(value string) behaviour {
	return func(b *backend, _ []string) result {
		b.token = setting{value: value}
		return result{tag: "SET"}
	}
}

// setsOnly is one call of set_config, which needs a fence no more than SET.
func setsOnly(value string) behaviour {
	return func(b *backend, _ []string) result {
		b.looks()
		b.token = setting{value: value}
		return result{tag: "SELECT 1", columns: true, rows: [][]string{{"set"}}}
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

// enters writes and sets the variable, all in one statement, which is covered by what
// the session has carried before.
func enters(value string) behaviour {
	return func(b *backend, carried []string) result {
		r := writing("INSERT 0 1")(b, carried)
		if r.code == "" {
			b.token = setting{value: value}
		}
		return r
	}
}

// unlocks releases all session-level advisory locks. It needs no fence: what was written
// ahead of it does.
func unlocks(b *backend, _ []string) result {
	b.looks()
	b.unlockAll()
	return result{tag: "SELECT", columns: true, rows: [][]string{{"unlocked"}}}
}

// callsUnlocker calls a function that releases all advisory locks, of which the catalog tells.
func callsUnlocker(b *backend, carried []string) result {
	if !b.policy.unlockers {
		return result{code: "42883"}
	}
	r := reading("unlocked")(b, carried)
	b.unlockAll()
	return r
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
		b.looks()
		b.judge("PREPARE", carried)
		b.statements["p"] = preparedText{sql, carried}
		return result{tag: "PREPARE"}
	}
}

// executes runs a prepared statement under the fence of this message.
func executes(b *backend, carried []string) result {
	st, ok := b.statements["p"]
	if !ok {
		return result{code: "26000"}
	}
	if !strings.HasPrefix(st.text, "INSERT") && !strings.HasPrefix(st.text, "SELECT") && !strings.HasPrefix(st.text, "UPDATE") {
		return result{code: "42601"}
	}
	return behaviourOf(st.text)(b, carried)
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
		b.looks()
		b.judge("DECLARE", carried)
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
		b.tx.wrote = append(b.tx.wrote, c.carried...)
		if code := b.write("FETCH", carried); code != "" {
			return result{code: code}
		}
		return result{tag: "FETCH 1", columns: true, rows: [][]string{{"fetched"}}}
	}
}
