//go:build linux

package faulttest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// loss is the cost of a run.
type loss struct {
	kind, fault        string
	strikes            int // how often the fault struck
	grants             int
	attempts, ungrant  int // acquires that returned, and those of them that returned no grant
	committed, refused int // writes
	violations         int
	length             time.Duration
	without            time.Duration // time in which nobody held the lease
	longest            time.Duration // the longest such time
}

// lossOf measures a run from its first grant to its last. Held is a lease from
// the moment that the acquire returned to the last at which its holder, who asks
// between its writes, was told that it still is.
func lossOf(w *world, h *history, violations int) loss {
	l := loss{kind: w.kind.name, fault: w.fault.name, strikes: w.strikes, violations: violations}
	holds := h.grants()
	slices.SortFunc(holds, func(a, b *attempt) int { return cmp.Compare(a.ret, b.ret) })
	l.grants = len(holds)
	for _, a := range h.attempts {
		if a.ret > 0 {
			l.attempts++
			if a.token == 0 {
				l.ungrant++
			}
		}
	}
	for _, w := range h.writes {
		switch w.writeOutcome {
		case committed:
			l.committed++
		case refused:
			l.refused++
		}
	}
	if len(holds) == 0 {
		return l
	}
	until := holds[0].ret
	for _, a := range holds {
		if gap := time.Duration(a.ret - until); gap > 0 {
			l.without += gap
			l.longest = max(l.longest, gap)
		}
		until = max(until, a.lastHeld)
	}
	l.length = time.Duration(holds[len(holds)-1].ret - holds[0].ret)
	return l
}

func (l loss) String() string {
	return fmt.Sprintf("%d strikes, %d grants in %d acquires, %d writes committed and %d refused, %.0f%% of %.1f s without a holder, at most %.2f s",
		l.strikes, l.grants, l.attempts, l.committed, l.refused, percent(l.without, l.length), l.length.Seconds(), l.longest.Seconds())
}

func percent[N int | time.Duration](part, whole N) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}

// loadBefore is the load average when the tests began.
var loadBefore = func() string {
	text, _ := os.ReadFile("/proc/loadavg")
	average, _, _ := strings.Cut(string(text), " ")
	return average
}()

// writePage puts the rows between the marks in docs/reference/faults.md.
func writePage(name string, losses []loss, promotions []takeovers) error {
	const begin, end = "<!-- begin: written by make faults -->\n", "<!-- end -->"
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return errors.New(name + " has no place for the table")
	}
	return os.WriteFile(name, []byte(before+begin+table(losses, promotions)+end+after), 0o644)
}

// table has the rows in the order of kinds and their faults, and those of promotions.
func table(losses []loss, promotions []takeovers) string {
	var b strings.Builder
	strikes, committed, refused, violations := 0, 0, 0, 0
	for _, l := range losses {
		strikes, committed, refused, violations = strikes+l.strikes, committed+l.committed, refused+l.refused, violations+l.violations
	}
	for _, p := range promotions {
		strikes, committed, refused, violations = strikes+len(p.moves), committed+p.committed, refused+p.refused, violations+len(p.violations)
	}
	fmt.Fprintf(&b, "\nThis run: `make faults FAULTS=%v FAILOVERS=%d SEED=%d` on %s, with %d cores and a load average of %s before it. "+
		"Faults struck %d times, %d writes were committed and %d stale ones refused; %d violations were found.\n",
		*length, *failovers, theSeed(), time.Now().Format(time.DateOnly), runtime.NumCPU(), loadBefore, strikes, committed, refused, violations)
	b.WriteString("\n| store | fault | store remembers | time without a holder | longest | acquires without a grant |\n")
	b.WriteString("|---|---|---|--:|--:|--:|\n")
	for _, k := range kinds {
		for _, f := range k.faults {
			for _, l := range losses {
				if l.kind != k.name || l.fault != f.name {
					continue
				}
				remembers := "no"
				if f.keepsMemory {
					remembers = "yes"
				}
				fmt.Fprintf(&b, "| %s | %s | %s | %.0f %% | %.1f s | %.0f %% |\n", l.kind, l.fault, remembers,
					percent(l.without, l.length), l.longest.Seconds(), percent(l.ungrant, l.attempts))
			}
		}
	}
	writePromotions(&b, promotions)
	b.WriteString("\n")
	return b.String()
}

// writePromotions writes the table of the costs of changes of the primary.
func writePromotions(b *strings.Builder, promotions []takeovers) {
	b.WriteString("\n| PostgreSQL under Patroni | writes lost by PostgreSQL | new primary after | leader writes after | no write for |\n")
	b.WriteString("|---|--:|--:|--:|--:|\n")
	for _, c := range changes {
		for _, p := range promotions {
			if p.change != c.name {
				continue
			}
			promoted := spread(p.moves, func(m move) time.Duration { return time.Duration(m.promoted - m.struck) })
			wrote := spread(p.moves, func(m move) time.Duration { return time.Duration(m.wrote - m.struck) })
			silent := spread(p.moves, func(m move) time.Duration { return m.silent })
			fmt.Fprintf(b, "| %s | %d | %s | %s | %s |\n", p.change, p.lost, promoted, wrote, silent)
		}
	}
}

// spread is the least, the median and the greatest of what the moves took.
func spread(moves []move, took func(move) time.Duration) string {
	var all []time.Duration
	for _, m := range moves {
		all = append(all, took(m))
	}
	if len(all) == 0 {
		return "–"
	}
	slices.Sort(all)
	return fmt.Sprintf("%.1f / %.1f / %.1f s", all[0].Seconds(), all[len(all)/2].Seconds(), all[len(all)-1].Seconds())
}
