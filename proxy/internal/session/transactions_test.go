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
		b.write("COMMIT of a cursor WITH HOLD", first(c.carried, carried))
		delete(b.cursors, "h")
	}
	b.commit()
	return result{tag: "COMMIT"}
}

func chains(b *backend, carried []string) result {
	if b.tx.block == 0 {
		return result{code: "25P01"}
	}
	r := commits(b, carried)
	b.begin()
	b.tx.block = 'T'
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
	b.tx.saves = append(b.tx.saves, savepoint{b.token, b.escapes, maps.Clone(b.tx.checked), b.tx.stamped, b.tx.owed, maps.Clone(b.cursors)})
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
	b.token, b.escapes, b.tx.checked, b.cursors = at.token, at.escapes, maps.Clone(at.checked), maps.Clone(at.cursors)
	b.tx.stamped, b.tx.owed = at.stamped, at.owed
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
	b.tx.saves = b.tx.saves[:n-1]
	return result{tag: "RELEASE"}
}
