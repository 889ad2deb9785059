package loadtest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// plan is a transaction to be, without its tokens.
type plan struct {
	isolation string
	proxied   bool
	extended  bool
	// joined sends all in one message, alone one statement outside of a block.
	joined, alone bool
	parts         []part
	stall         time.Duration // before the commit
}

// part is a fence and a write under it.
type part struct {
	set     []*resource
	carrier carrier
	write   write
	// undone is written first to be rolled back to a savepoint: with the fence,
	// whose check then counts no more.
	undone bool
}

type carrier int

const (
	variable carrier = iota
	comment          // read by the proxy alone
	explicit         // a call of wirefence.check
)

type write int

const (
	intoJournal write = iota
	intoDocuments
	inDocuments // an update of rows of many resources
	moving      // a row from one resource to another
	outOfDocuments
	intoFixed
	writeKinds
)

var isolations = []string{"READ COMMITTED", "READ COMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"}

func drawPlan(r *rand.Rand, all []*resource) plan {
	p := plan{isolation: isolations[r.IntN(len(isolations))], proxied: r.IntN(2) == 0, extended: r.IntN(2) == 0}
	p.parts = make([]part, 1+max(0, r.IntN(8)-4)/2) // mostly one, at most two
	for i := range p.parts {
		p.parts[i] = drawPart(r, all, p.proxied)
	}
	first := p.parts[0]
	switch r.IntN(4) {
	case 0:
		p.joined, p.extended = true, false
	case 1:
		if first.carrier == comment {
			p.alone, p.isolation, p.parts = true, isolations[0], p.parts[:1]
			p.parts[0].undone = false
		}
	}
	if p.joined && slices.ContainsFunc(p.parts, func(p part) bool { return p.carrier == comment }) {
		p.parts = p.parts[:1] // a comment holds for its whole message
	}
	if !p.alone && r.IntN(16) == 0 {
		p.joined, p.stall = false, time.Duration(50+r.IntN(1200))*time.Millisecond
	}
	return p
}

func drawPart(r *rand.Rand, all []*resource, proxied bool) part {
	p := part{set: drawSet(r, all), undone: r.IntN(6) == 0, write: write(r.IntN(int(writeKinds)))}
	switch {
	case proxied:
		p.carrier = carrier(r.IntN(2))
	case p.write == intoJournal || r.IntN(3) == 0:
		p.carrier = explicit
	}
	if p.write == moving && len(p.set) < 2 || p.write == intoFixed && p.ofFixed() == nil {
		p.write = intoDocuments
	}
	return p
}

// ofFixed returns a resource of the set that has a table, or nil.
func (p part) ofFixed() *resource {
	for _, r := range p.set {
		if r.id < fixed {
			return r
		}
	}
	return nil
}

// rows is how many rows at least the part leaves behind.
func (p part) rows() int {
	switch p.write {
	case intoJournal, intoDocuments:
		return len(p.set)
	case intoFixed:
		return 1
	}
	return 0
}

// mayConflict reports whether the documentation lets the transaction have 40001:
// if its snapshot is older than its check, or if it has several fences, of which a
// later one may have it wait for what waits for it.
func (p plan) mayConflict() bool { return p.isolation != "READ COMMITTED" || len(p.parts) > 1 }

// touches returns the resources of all parts.
func (p plan) touches() (all []*resource) {
	for _, part := range p.parts {
		all = append(all, part.set...)
	}
	return all
}

// undoneTx is the transaction of rows that are rolled back.
const undoneTx = -1

// statements are the plan in SQL, for a writer and with the number of the
// transaction.
func (p plan) statements(writer int, tx int64, t tokens) (all []string) {
	if p.alone {
		return []string{p.parts[0].sql(writer, tx, t)}
	}
	all = append(all, "BEGIN ISOLATION LEVEL "+p.isolation)
	for _, part := range p.parts {
		if part.undone {
			all = append(all, "SAVEPOINT s")
			all = append(all, part.fenced(writer, undoneTx, t)...)
			all = append(all, "ROLLBACK TO SAVEPOINT s")
		}
		all = append(all, part.fenced(writer, tx, t)...)
	}
	return append(all, "COMMIT")
}

// fenced is the write with what carries its fence.
func (p part) fenced(writer int, tx int64, t tokens) []string {
	sql := p.sql(writer, tx, t)
	switch p.carrier {
	case variable:
		return []string{"SET LOCAL wirefence.token = '" + t.fence(p.set) + "'", sql}
	case explicit:
		return []string{"SET LOCAL wirefence.token = ''", "SELECT wirefence.check('" + t.fence(p.set) + "')", sql}
	}
	return []string{sql}
}

func (p part) sql(writer int, tx int64, t tokens) (sql string) {
	values := t.values(p.set)
	switch p.write {
	case intoJournal:
		sql = fmt.Sprintf("INSERT INTO journal SELECT id, token, %d FROM %s", tx, values)
	case intoDocuments:
		sql = fmt.Sprintf("INSERT INTO documents SELECT id, token, %d, %d FROM %s", tx, writer, values)
	case inDocuments:
		sql = fmt.Sprintf("UPDATE documents AS d SET token = p.token, tx = %d FROM %s WHERE d.writer = %d AND d.id = p.id", tx, values, writer)
	case moving:
		from, to := p.set[0], p.set[1]
		sql = fmt.Sprintf("UPDATE documents SET id = %d, token = %d, tx = %d WHERE writer = %d AND id = %d", to.id, t[to], tx, writer, from.id)
	case outOfDocuments:
		sql = fmt.Sprintf("DELETE FROM documents WHERE writer = %d AND id IN (SELECT id FROM %s)", writer, values)
	case intoFixed:
		r := p.ofFixed()
		sql = fmt.Sprintf("INSERT INTO fixed_%d VALUES (%d, %d, %d)", r.id, r.id, t[r], tx)
	}
	if p.carrier == comment {
		sql += " /*wirefence.token='" + t.fence(p.set) + "'*/"
	}
	return sql
}

var ways = [2]string{"direct", "through the proxy"}

// way is which of a writer's connections the plan takes.
func (p plan) way() int {
	if p.proxied {
		return 1
	}
	return 0
}

func (p plan) String() string {
	protocol := "simple"
	if p.extended {
		protocol = "extended"
	}
	return strings.Join([]string{p.isolation, ways[p.way()], protocol, fmt.Sprintf("%d fences", len(p.parts)), fmt.Sprintf("stall %v", p.stall)}, ", ")
}
