// Package doctor tells whether the fence really holds: in the database, in the
// lease store and through the proxy. It changes nothing anywhere.
//
// A check is a function over an Input. To add one, write the function into the
// file of its kind and name it in that file's list.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Grade says what to make of a finding. Later ones are worse.
type Grade int

// The grades.
const (
	OK        Grade = iota
	Note            // worth knowing; nothing is wrong
	Warning         // the fence holds, but less well than it could
	Unchecked       // it is not known
	Problem         // the fence doesn't hold, or leases can't be taken
)

var gradeNames = [...]string{"ok", "note", "warning", "unchecked", "problem"}

func (g Grade) String() string { return gradeNames[g] }

// Grades returns all grades, the best first.
func Grades() (all []Grade) {
	for g := range gradeNames {
		all = append(all, Grade(g))
	}
	return all
}

// UnmarshalText reads the grade's name.
func (g *Grade) UnmarshalText(text []byte) error {
	at := slices.Index(gradeNames[:], string(text))
	if at < 0 {
		return fmt.Errorf("%q is no grade", text)
	}
	*g = Grade(at)
	return nil
}

// MarshalText writes the grade's name.
func (g Grade) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// Finding is one thing that a check has found.
type Finding struct {
	Grade Grade `json:"grade"`
	// Says is what was found. It holds no secrets.
	Says string `json:"says"`
	// Means is what follows from it; "" where nothing is wrong.
	Means string `json:"means,omitempty"`
	// Remedy are commands and SQL statements that mend it, or the setting to
	// change, in order.
	Remedy []string `json:"remedy,omitempty"`
}

// Check looks at one thing.
type Check struct {
	// Name is stable: what it looks at, and what of it.
	Name string
	// Needs are the checks without whose success this one can't be made.
	Needs []string
	// Run returns what it has found, at least one finding, or why it could not
	// look.
	Run func(ctx context.Context, in *Input) ([]Finding, error)
}

// Result is what became of a check.
type Result struct {
	Check    string        `json:"check"`
	Grade    Grade         `json:"grade"` // the worst of the findings
	Findings []Finding     `json:"findings"`
	Took     time.Duration `json:"-"`
}

// concurrency is how many checks run at once, and so how many connections to the
// database they take.
const concurrency = 4

// Run makes the checks that the input has something for, each with a deadline of
// its own, and returns their results in the order of the checks. One that fails
// doesn't stop the others, but for those that need it.
func Run(ctx context.Context, in *Input, timeout time.Duration) []Result {
	return run(ctx, in, in.checks(), timeout)
}

func run(ctx context.Context, in *Input, checks []Check, timeout time.Duration) []Result {
	results := make([]Result, len(checks))
	done := map[string]chan struct{}{}
	for _, c := range checks {
		done[c.Name] = make(chan struct{})
	}
	slots := make(chan struct{}, concurrency)
	for i, c := range checks {
		go func() {
			defer close(done[c.Name])
			if missing := awaitNeeds(checks, results, done, c.Needs); missing != "" {
				results[i] = unchecked(c.Name, Finding{Says: "not looked at, because of " + missing})
				return
			}
			slots <- struct{}{}
			defer func() { <-slots }()
			results[i] = c.make(ctx, in, timeout)
		}()
	}
	for _, c := range checks {
		<-done[c.Name]
	}
	return results
}

// awaitNeeds waits for the checks that one needs, and returns the first that
// wasn't good enough.
func awaitNeeds(checks []Check, results []Result, done map[string]chan struct{}, needs []string) string {
	for _, name := range needs {
		ended, asked := done[name]
		if !asked {
			return name
		}
		<-ended
		at := slices.IndexFunc(checks, func(c Check) bool { return c.Name == name })
		if results[at].Grade >= Unchecked {
			return name
		}
	}
	return ""
}

func unchecked(name string, f Finding) Result {
	f.Grade = Unchecked
	return Result{Check: name, Grade: Unchecked, Findings: []Finding{f}}
}

// make makes one check.
func (c Check) make(ctx context.Context, in *Input, timeout time.Duration) Result {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	found, err := c.Run(ctx, in)
	r := Result{Check: c.Name, Findings: found}
	switch {
	case err != nil:
		r.Findings = append(r.Findings, in.notMade(ctx, err, timeout))
	case len(found) == 0:
		r.Findings = []Finding{{Grade: Unchecked, Says: "the check returned no finding"}}
	}
	for _, f := range r.Findings {
		r.Grade = max(r.Grade, f.Grade)
	}
	r.Took = time.Since(began)
	return r
}

// notMade tells why a check could not be made, and which right it lacks.
func (in *Input) notMade(ctx context.Context, err error, timeout time.Duration) Finding {
	f := Finding{Grade: Unchecked, Says: err.Error()}
	var refusal *pgconn.PgError
	var right *missingRight
	switch {
	case errors.As(err, &right):
		f.Means, f.Remedy = "The connecting role lacks a right for this check.", right.remedy
	case errors.As(err, &refusal) && refusal.Code == insufficientPrivilege:
		f.Says = refusal.Message
		f.Means = "The connecting role lacks a right for this check."
		f.Remedy = []string{"GRANT wirefence_issuer TO " + in.role()}
	case ctx.Err() != nil:
		f.Says = fmt.Sprintf("no answer within %v", timeout)
		f.Remedy = []string{"--timeout gives each check longer"}
	}
	return f
}

const insufficientPrivilege = "42501"

// missingRight is a right that a check needs and didn't have.
type missingRight struct {
	what   string
	remedy []string
}

func (e *missingRight) Error() string { return e.what }

// role is the name of the connecting role, as in SQL.
func (in *Input) role() string {
	return pgx.Identifier{in.Database.Config().ConnConfig.User}.Sanitize()
}

// one and all of a check's findings that are as they should be.
func fine(format string, args ...any) []Finding {
	return []Finding{{Says: fmt.Sprintf(format, args...)}}
}

// orFine returns the findings, or that all is fine where there are none.
func orFine(found []Finding, format string, args ...any) []Finding {
	if len(found) == 0 {
		return fine(format, args...)
	}
	return found
}

// Counts are how many checks have each grade, by its name.
func Counts(results []Result) map[string]int {
	counts := map[string]int{}
	for _, name := range gradeNames {
		counts[name] = 0
	}
	for _, r := range results {
		counts[r.Grade.String()]++
	}
	return counts
}

// Worst is the worst grade of all.
func Worst(results []Result) Grade {
	if len(results) == 0 {
		return Unchecked
	}
	return slices.MaxFunc(results, func(a, b Result) int { return int(a.Grade) - int(b.Grade) }).Grade
}
