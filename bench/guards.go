package main

import (
	"fmt"
	"strings"
	"time"
)

// guardedDatabase has guarded tables. In the other there are none, so that what is
// measured there doesn't pay for any.
const guardedDatabase = "guards"

// Ways of an insert into a guarded table, and what each is compared with.
const (
	guardedDirect    = "direct, guarded"
	templatedDirect  = "direct, guarded by a template"
	guardedVariable  = byVariable + ", guarded"
	besideGuards     = byVariable + ", not guarded, other tables are"
	guardedByComment = byComment + ", guarded"

	checkedVariable        = "proxy without holds, fenced by session variable"
	checkedComment         = "proxy without holds, fenced by comment"
	guardedCheckedVariable = checkedVariable + ", guarded"
	guardedCheckedComment  = checkedComment + ", guarded"
)

var guardInserts = workload{
	name: "guards", writes: true, protocols: []string{"prepared"}, clients: []int{16}, ways: []way{
		{name: direct, target: postgres, script: "insert.sql"},
		{name: guardedDirect, target: postgres, script: "insert_guarded.sql", fence: fenceText, database: guardedDatabase},
		{name: templatedDirect, target: postgres, script: "insert_templated.sql", fence: fenceText, database: guardedDatabase},
		{name: byVariable, target: wirefence, script: "insert.sql", fence: fenceText},
		{name: besideGuards, target: wirefence, script: "insert.sql", fence: fenceText, database: guardedDatabase},
		{name: guardedVariable, target: wirefence, script: "insert_guarded.sql", fence: fenceText, database: guardedDatabase},
		{name: byComment, target: wirefence, script: "insert_comment.sql"},
		{name: guardedByComment, target: wirefence, script: "insert_guarded_comment.sql", database: guardedDatabase},
		{name: checkedVariable, target: checking, script: "insert.sql", fence: fenceText},
		{name: guardedCheckedVariable, target: checking, script: "insert_guarded.sql", fence: fenceText, database: guardedDatabase},
		{name: checkedComment, target: checking, script: "insert_comment.sql"},
		{name: guardedCheckedComment, target: checking, script: "insert_guarded_comment.sql", database: guardedDatabase},
	},
}

// unguardedAs names the way that a guarded one is compared with.
var unguardedAs = map[string]string{
	guardedDirect: direct, templatedDirect: direct, besideGuards: byVariable, guardedVariable: byVariable, guardedByComment: byComment,
	guardedCheckedVariable: checkedVariable, guardedCheckedComment: checkedComment,
}

// statement is how many rows one statement inserts, and of how many resources.
type statement struct{ rows, resources int }

var guardStatements = []statement{{1, 1}, {100, 1}, {100, 32}, {10000, 1}, {10000, 32}}

// workload is the statement on a table without guards and on one with a template.
// Each of the resources is in the fence, and each comes into the rows.
func (s statement) workload() workload {
	var fence []string
	for n := range s.resources {
		fence = append(fence, fmt.Sprintf("line:%d=34", n))
	}
	return workload{
		name: fmt.Sprintf("guards-%d-rows-%d-resources", s.rows, s.resources), writes: true, protocols: []string{"prepared"}, clients: []int{1},
		variables: []string{fmt.Sprintf("rows=%d", s.rows), fmt.Sprintf("resources=%d", s.resources)},
		ways: []way{
			{name: direct, target: postgres, script: "lines.sql", database: guardedDatabase},
			{name: templatedDirect, target: postgres, script: "lines_guarded.sql", fence: strings.Join(fence, ","), database: guardedDatabase},
		},
	}
}

func guardWorkloads() []workload {
	all := []workload{guardInserts}
	for _, s := range guardStatements {
		all = append(all, s.workload())
	}
	return all
}

// guardTables says what guards cost.
func (b *book) guardTables(p *page) {
	inserts := b.inOrder(guardInserts, "prepared")
	if len(inserts) > 0 {
		p.section("## Guards",
			"The same insert, prepared, into a table that is [guarded](guards.md) for one resource, and into one whose template names a column. Direct writers carry the fence in the session variable. Without holds (`WIREFENCE_HOLD=0`) the proxy's check serves the guard as well; under a hold, the guard checks for itself.",
			"| clients | way | transactions/s | of the same, not guarded | p50 ms | p99 ms |",
			"|---:|---|---:|---:|---:|---:|")
	}
	for _, res := range inserts {
		compared := ""
		if base := b.results.of(guardInserts.name, "prepared", res.group.clients, unguardedAs[res.way.name]); base != nil {
			compared = ratio(res, base, tps).String()
		}
		p.line("| %d | %s | %s | %s | %s | %s |", res.group.clients, res.way.name, rate(res.spread(tps)), compared,
			ms(res.median(p50)), ms(res.median(p99)))
	}
	b.guardStatementTable(p)
}

func (b *book) guardStatementTable(p *page) {
	head := false
	for _, s := range guardStatements {
		name := s.workload().name
		base, guarded := b.results.of(name, "prepared", 1, direct), b.results.of(name, "prepared", 1, templatedDirect)
		if base == nil || guarded == nil {
			continue
		}
		if !head {
			p.line("")
			p.line("Statements of many rows, each row with a resource by the template `line:{name}`, one client, direct. *Added* is the difference of the medians of a statement's time, divided by its rows.")
			p.line("")
			p.line("| rows | resources | not guarded, p50 ms | guarded, p50 ms | statements/s against not guarded | added per row, µs |")
			p.line("|---:|---:|---:|---:|---:|---:|")
			head = true
		}
		before, after := base.median(p50), guarded.median(p50)
		p.line("| %d | %d | %s | %s | %s | %.2f |", s.rows, s.resources, ms(before), ms(after), ratio(guarded, base, tps),
			float64(after-before)/float64(time.Microsecond)/float64(s.rows))
	}
}
