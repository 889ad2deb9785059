package main

import (
	"fmt"
	"strings"
	"time"
)

const (
	// rowsDatabase has jobs whose rows judge, and a table that is guarded by them.
	rowsDatabase = "rows"
	// unguardedRows is the same without the guard.
	unguardedRows = "rows_unguarded"
)

// completions are a worker's last transaction: its result, and the job's update.
var completions = workload{
	name: "complete", title: "a job's completion with one result", writes: true, protocols: []string{"simple"}, ways: []way{
		{name: direct, target: postgres, script: "complete.sql", database: unguardedRows},
		{name: viaProxy, target: wirefence, script: "complete.sql", database: unguardedRows},
		{name: byComment, target: wirefence, script: "complete_comment.sql", database: unguardedRows},
		{name: byVariable, target: wirefence, script: "complete_variable.sql", database: unguardedRows},
	},
}

const guardedRows = byComment + ", guarded"

// batch is how many rows one statement inserts under the claims of how many jobs.
type batch struct{ rows, jobs int }

var batches = []batch{{1000, 1}, {1, 1000}, {1000, 1000}}

func (s batch) workload() workload {
	claims := make([]string, s.jobs)
	for n := range claims {
		claims[n] = fmt.Sprintf("job(%d)=%d", n+1, 1767225600000000+n+1)
	}
	w := workload{
		name: fmt.Sprintf("rows-%d-of-%d-jobs", s.rows, s.jobs), writes: true, protocols: []string{"simple"}, clients: []int{1},
		variables: []string{fmt.Sprintf("rows=%d", s.rows), fmt.Sprintf("jobs=%d", s.jobs), "fence=" + strings.Join(claims, ",")},
		ways: []way{
			{name: viaProxy, target: wirefence, script: "results.sql", database: unguardedRows, variables: []string{"key=unfenced"}},
			{name: byComment, target: wirefence, script: "results.sql", database: unguardedRows, variables: []string{"key=wirefence.token"}},
		},
	}
	if s.rows > 1 {
		w.ways = append(w.ways, way{name: guardedRows, target: wirefence, script: "results_guarded.sql", database: rowsDatabase, variables: []string{"key=wirefence.token"}})
	}
	return w
}

func rowWorkloads() []workload {
	all := []workload{completions}
	for _, s := range batches {
		all = append(all, s.workload())
	}
	return all
}

// rowTables says what row fences cost.
func (b *book) rowTables(p *page) {
	b.table(p, completions, "simple")
	head := false
	for _, s := range batches {
		base, fenced := s.of(b, viaProxy), s.of(b, byComment)
		if base == nil || fenced == nil {
			continue
		}
		if !head {
			p.section("### Many claims, many rows",
				"One client inserts rows in one statement, through a proxy; the comment names all jobs. A guarded table is compared with one that isn't, under the same fence.",
				"| rows | jobs | unfenced, p50 ms | fenced, p50 ms | added per job, µs | guarded, p50 ms | guarded: statements/s of not guarded |",
				"|---:|---:|---:|---:|---:|---:|---:|")
			head = true
		}
		guarded, compared := "", ""
		if g := s.of(b, guardedRows); g != nil {
			guarded, compared = ms(g.median(p50)), ratio(g, fenced, tps).String()
		}
		p.line("| %d | %d | %s | %s | %.2f | %s | %s |", s.rows, s.jobs, ms(base.median(p50)), ms(fenced.median(p50)), s.added(base, fenced), guarded, compared)
	}
}

func (s batch) of(b *book, way string) *result {
	return b.results.of(s.workload().name, "simple", 1, way)
}

// added is the time per job, in microseconds.
func (s batch) added(base, fenced *result) float64 {
	return float64(fenced.median(p50)-base.median(p50)) / float64(time.Microsecond) / float64(s.jobs)
}

func (b *book) rowVerdicts() (all []verdict) {
	if cases := b.against(completions.name, goalClients, []string{byComment, byVariable}, viaProxy, tps); len(cases) > 0 {
		all = append(all, atLeast("row-fenced completion of a job: tps against unfenced through the proxy", 0.85, cases...))
	}
	var added, guarded []outcome
	for _, s := range batches {
		name := fmt.Sprintf("%d rows of %d jobs", s.rows, s.jobs)
		base, fenced := s.of(b, viaProxy), s.of(b, byComment)
		if base == nil || fenced == nil {
			continue
		}
		if s.jobs > 1 {
			added = append(added, outcome{name, single(s.added(base, fenced)).got})
		}
		if g := s.of(b, guardedRows); g != nil {
			guarded = append(guarded, outcome{name, ratio(g, fenced, tps)})
		}
	}
	if added != nil {
		all = append(all, atMost("1,000 claims in a transaction: µs added for each", 7, added...))
	}
	if guarded != nil {
		all = append(all, atLeast("insert of 1,000 rows, guarded by row fences: statements/s against not guarded", 0.8, guarded...))
	}
	return all
}
