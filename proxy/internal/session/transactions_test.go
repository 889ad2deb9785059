package session

import "maps"

// What the model does at commands of transactions.

func begins(b *backend, _ []string) result {
	if b.tx.block != 0 {
		b.warn("25001")
	}
	b.tx.block = 'T'
	return result{tag: "BEGIN"}
}

func commits(b *backend, carried []string) result {
	if b.tx.block == 'E' {
		return rollsBack(b, carried)
	}
	if b.tx.block == 0 {
		b.warn("25P01")
	}
	if c, ok := b.cursors["h"]; ok && b.tx.block == 'T' {
		delete(b.cursors, "h")
		if code := b.write("a cursor at COMMIT", first(c.carried, carried)); code != "" {
			b.rollback()
			return result{code: code}
		}
	}
	if b.tx.deferred {
		if code := b.write("a trigger at COMMIT", carried); code != "" {
			b.rollback()
			return result{code: code}
		}
	}
	b.commit()
	return result{tag: "COMMIT"}
}

func chains(b *backend, carried []string) result {
	if b.tx.block == 0 {
		return result{code: "25P01"}
	}
	readOnly := b.tx.readOnly
	r := commits(b, carried)
	if r.code == "" {
		b.begin()
		b.tx.block, b.tx.readOnly = 'T', readOnly
	}
	return r
}

func rollsBack(b *backend, _ []string) result {
	if b.tx.block == 0 {
		b.warn("25P01")
	}
	delete(b.cursors, "h")
	b.rollback()
	return result{tag: "ROLLBACK"}
}

func saves(b *backend, _ []string) result {
	if b.tx.block == 0 {
		return result{code: "25P01"}
	}
	b.tx.saves = append(b.tx.saves, savepoint{b.token, b.escapes, b.tx.state.clone(), maps.Clone(b.cursors)})
	return result{tag: "SAVEPOINT"}
}

func rollsBackTo(b *backend, _ []string) result {
	n := len(b.tx.saves)
	switch {
	case b.tx.block == 0:
		return result{code: "25P01"}
	case n == 0:
		return result{code: "3B001"}
	}
	at := b.tx.saves[n-1]
	b.token, b.escapes, b.cursors = at.token, at.escapes, maps.Clone(at.cursors)
	b.restore(at.state.clone())
	b.tx.block = 'T'
	return result{tag: "ROLLBACK"}
}

func releases(b *backend, _ []string) result {
	n := len(b.tx.saves)
	switch {
	case b.tx.block == 0:
		return result{code: "25P01"}
	case n == 0:
		return result{code: "3B001"}
	}
	b.tx.readOnly = b.tx.saves[n-1].state.readOnly // as it was before the subtransaction
	b.tx.saves = b.tx.saves[:n-1]
	return result{tag: "RELEASE"}
}

func beginsReadOnly(b *backend, carried []string) result {
	r := begins(b, carried)
	b.tx.readOnly = true
	return r
}

// beginsFrozen is BEGIN ISOLATION LEVEL REPEATABLE READ.
func beginsFrozen(readOnly bool) behaviour {
	return func(b *backend, carried []string) result {
		b.tx.frozen = b.tx.frozen || b.tx.block == 0
		if readOnly {
			return beginsReadOnly(b, carried)
		}
		return begins(b, carried)
	}
}

// isolates is SET TRANSACTION ISOLATION LEVEL, which no snapshot may precede.
func isolates(b *backend, _ []string) result {
	if b.tx.queried || len(b.tx.saves) > 0 {
		return result{code: "25001"}
	}
	b.unlike = b.unlike || b.tx.snapshot
	b.tx.frozen = true
	return result{tag: "SET"}
}

// locks is LOCK. A check is behind it, since it takes a snapshot.
func locks(b *backend, carried []string) result {
	if b.tx.block == 0 && !b.multi {
		return result{code: "25P01"}
	}
	b.tx.locked = append(b.tx.locked, b.effective(carried)...)
	b.tx.snapshot = true
	return result{tag: "LOCK TABLE"}
}

// keeps is PREPARE TRANSACTION: whatever covers the transaction doesn't travel with it.
func keeps(b *backend, _ []string) result {
	switch {
	case b.tx.block == 0:
		b.warn("25P01")
		return result{tag: "ROLLBACK"}
	case b.gid || len(b.cursors) > 0:
		return result{code: "55000"}
	case len(b.tx.wrote) > 0 || b.tx.stamped:
		b.violates("a transaction is prepared that was written by %v", b.tx.wrote)
	}
	b.tx.wrote, b.gid = nil, true
	b.commit()
	return result{tag: "PREPARE TRANSACTION"}
}

func commitsKept(b *backend, carried []string) result {
	r := alone("COMMIT PREPARED", false)(b, carried)
	switch {
	case r.code != "":
	case !b.gid:
		return result{code: "42704"}
	case b.policy.required || b.policy.leased || len(b.effective(carried)) > 0:
		b.violates("COMMIT PREPARED in a fenced session")
	default:
		b.gid = false
	}
	return r
}

// first is the first of two lists that isn't empty.
func first(a, b []string) []string {
	if len(a) > 0 {
		return a
	}
	return b
}
