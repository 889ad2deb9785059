// Package doctor examines a deployment: whether fences hold in the database, in the lease
// store and through the proxy. It changes nothing.
//
// A check is a function over an Input. To add one, write the function into the file of its
// subject, and add a row to the list at the top of that file.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/lockclient/finding"
)

// What a check finds, as a lease store does, too.
type (
	Grade   = finding.Grade
	Finding = finding.Finding
)

// The grades.
const (
	OK        = finding.OK
	Note      = finding.Note
	Warning   = finding.Warning
	Unchecked = finding.Unchecked
	Problem   = finding.Problem
)

// Check examines one thing.
type Check struct {
	// Name is stable, in the form subject.aspect.
	Name string
	// Needs names the checks that must have succeeded before this one.
	Needs []string
	// Run returns at least one finding, or why the check can't be made.
	Run func(ctx context.Context, in *Input) ([]Finding, error)
}

// judging returns a check's function that reads facts and judges them.
func judging[T any](facts func(*Input, context.Context) (T, error), judge func(*Input, T) []Finding) func(context.Context, *Input) ([]Finding, error) {
	return func(ctx context.Context, in *Input) ([]Finding, error) {
		all, err := facts(in, ctx)
		if err != nil {
			return nil, err
		}
		return judge(in, all), nil
	}
}

// Result is the outcome of a check.
type Result struct {
	Check    string        `json:"check"`
	Grade    Grade         `json:"grade"` // the worst of the findings
	Findings []Finding     `json:"findings"`
	Took     time.Duration `json:"-"`
}

// concurrency is how many checks run at a time, and how many connections to the database
// they have.
const concurrency = 4

// Run makes the checks for which the input names a part, each with its own deadline, and
// returns their results in the order of the checks. A check that fails stops only those that
// need it.
func Run(ctx context.Context, in *Input, timeout time.Duration) []Result {
	return run(ctx, in, in.checks(), timeout)
}

func run(ctx context.Context, in *Input, checks []Check, timeout time.Duration) []Result {
	results, done, at := make([]Result, len(checks)), make([]chan struct{}, len(checks)), map[string]int{}
	for i, c := range checks {
		done[i], at[c.Name] = make(chan struct{}), i
	}
	slots := make(chan struct{}, concurrency)
	for i, c := range checks {
		go func() {
			defer close(done[i])
			for _, name := range c.Needs {
				need, asked := at[name]
				if asked {
					<-done[need]
				}
				if !asked || results[need].Grade >= Unchecked {
					results[i] = Result{Check: c.Name, Grade: Unchecked, Findings: []Finding{{Grade: Unchecked, Says: "not looked at, because of " + name}}}
					return
				}
			}
			slots <- struct{}{}
			defer func() { <-slots }()
			results[i] = c.make(ctx, in, timeout)
		}()
	}
	for _, ended := range done {
		<-ended
	}
	return results
}

// make runs the check within the timeout.
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

// notMade reports why a check could not be made, with the right that is missing.
func (in *Input) notMade(ctx context.Context, err error, timeout time.Duration) Finding {
	f := Finding{Grade: Unchecked, Says: err.Error()}
	var refusal *pgconn.PgError
	var right *finding.MissingRight
	switch {
	case errors.As(err, &right):
		f.Means, f.Remedy = "A role lacks a right for this check.", right.Remedy
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

// role is the name of the connecting role, as in SQL.
func (in *Input) role() string {
	return pgx.Identifier{in.Database.Config().ConnConfig.User}.Sanitize()
}

// Counts are how many checks have each grade, by its name.
func Counts(results []Result) map[string]int {
	counts := map[string]int{}
	for _, g := range finding.Grades() {
		counts[g.String()] = 0
	}
	for _, r := range results {
		counts[r.Grade.String()]++
	}
	return counts
}

// Worst returns the worst grade of the results.
func Worst(results []Result) Grade {
	if len(results) == 0 {
		return Unchecked
	}
	return slices.MaxFunc(results, func(a, b Result) int { return int(a.Grade) - int(b.Grade) }).Grade
}
