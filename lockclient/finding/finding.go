// Package finding has what an examination of a deployment finds. `wirefence doctor` prints
// it, and a lease store examines its own servers. It imports the standard library alone.
package finding

import (
	"context"
	"fmt"
	"slices"
	"time"
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

// Finding is one thing that an examination has found.
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

// Fine returns one finding that all is as it should be.
func Fine(format string, args ...any) []Finding {
	return []Finding{{Says: fmt.Sprintf(format, args...)}}
}

// OrFine returns the findings, or that all is fine where there are none.
func OrFine(found []Finding, format string, args ...any) []Finding {
	if len(found) == 0 {
		return Fine(format, args...)
	}
	return found
}

// Examination is a part of the examination of a lease store.
type Examination struct {
	// Name is stable: the doctor's check is called store.NAME.
	Name string
	// Run returns at least one finding, or why it can't be made: a *MissingRight, if a
	// role lacks a right for it. It changes nothing.
	Run func(context.Context) ([]Finding, error)
}

// MissingRight is a right that an examination needs and didn't have.
type MissingRight struct {
	What   string
	Remedy []string
}

func (e *MissingRight) Error() string { return e.What }

// tolerable is an offset between clocks that nobody would look for.
const tolerable = time.Second

// Clock compares a clock that was read between two moments of this machine's.
func Clock(whose string, read, before, after time.Time) Finding {
	offset := read.Sub(before.Add(after.Sub(before) / 2)).Round(time.Millisecond)
	f := Finding{Says: fmt.Sprintf("%s is %v off this machine's, give or take %v", whose, offset, (after.Sub(before) / 2).Round(time.Millisecond))}
	if offset.Abs() > tolerable+after.Sub(before) {
		f.Grade, f.Means = Note, "Nothing relies on it: a lease's time is counted by one clock alone. Logs will not line up."
		f.Remedy = []string{"let both follow the same time servers"}
	}
	return f
}
