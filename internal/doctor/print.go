package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Print writes the results for people: a line for each finding, then its meaning and remedies.
func Print(w io.Writer, results []Result) error {
	widest := 0
	for _, r := range results {
		widest = max(widest, len(r.Check))
	}
	var b strings.Builder
	margin := strings.Repeat(" ", len("unchecked  ")+widest+2)
	for _, r := range results {
		for _, f := range r.Findings {
			fmt.Fprintf(&b, "%-9s  %-*s  %s\n", f.Grade, widest, r.Check, indented(f.Says, margin))
			if f.Means != "" {
				fmt.Fprintf(&b, "%s%s\n", margin, indented(f.Means, margin))
			}
			for _, remedy := range f.Remedy {
				fmt.Fprintf(&b, "%s-> %s\n", margin, indented(remedy, margin+"   "))
			}
		}
	}
	fmt.Fprintf(&b, "\n%s\n", summary(Counts(results), len(results)))
	_, err := io.WriteString(w, b.String())
	return err
}

// indented keeps the further lines of a text in its column. It escapes control characters,
// which clients can put into names.
func indented(text, margin string) string {
	var b strings.Builder
	for _, r := range strings.TrimSpace(text) {
		switch {
		case r == '\n':
			b.WriteString("\n" + margin)
		case r == '\t':
			b.WriteString("  ")
		case strconv.IsPrint(r) && r != utf8.RuneError:
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

func summary(counts map[string]int, all int) string {
	good := counts[OK.String()] + counts[Note.String()]
	var parts []string
	for _, g := range []struct {
		grade     Grade
		one, many string
	}{{Problem, "problem", "problems"}, {Unchecked, "check could not be made", "checks could not be made"}, {Warning, "warning", "warnings"}} {
		switch n := counts[g.grade.String()]; n {
		case 0:
		case 1:
			parts = append(parts, "1 "+g.one)
		default:
			parts = append(parts, fmt.Sprintf("%d %s", n, g.many))
		}
	}
	if len(parts) == 0 {
		return fmt.Sprintf("All is well: %d checks.", good)
	}
	return fmt.Sprintf("%s; %d of %d checks are well.", strings.Join(parts, ", "), good, all)
}

// Report is what PrintJSON writes.
type Report struct {
	Grade  Grade          `json:"grade" says:"the worst of all checks: ok, note, warning, unchecked or problem"`
	Counts map[string]int `json:"counts" says:"how many checks have each grade"`
	Checks []TimedResult  `json:"checks" says:"the checks in a fixed order"`
}

// TimedResult is what became of a check, and how long it took.
type TimedResult struct {
	Result
	Milliseconds float64 `json:"milliseconds" says:"how long the check took"`
}

// PrintJSON writes the results for programs. Fields may be added; those that are
// there keep their names and meanings.
func PrintJSON(w io.Writer, results []Result) error {
	out := Report{Worst(results), Counts(results), make([]TimedResult, len(results))}
	for i, r := range results {
		out.Checks[i] = TimedResult{r, float64(r.Took.Round(10*time.Microsecond)) / float64(time.Millisecond)}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(out)
}
