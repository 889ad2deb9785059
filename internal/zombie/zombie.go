// Package zombie shows whether a command has the zombie problem: it freezes a run of it, lets a
// second run have the turn, lets the first go on, and finds what the first one then changes in the
// database.
//
// The changes are decoded from the server's log (a temporary logical slot with test_decoding), or,
// where that isn't allowed, found by comparing the tables. No schema of Wirefence's is needed.
// pgoutput would need a publication of the tables: while a table without a replica identity is in
// one, the server refuses its UPDATEs and DELETEs, and a publication outlives a play that is killed.
//
// Explore plays with every moment in turn, as the run's messages to PostgreSQL mark them.
//
// The package imports internal/connstring, internal/pgenv and internal/runner.
package zombie

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options of a play.
type Options struct {
	// Tables are those that are watched, as in SQL, with their partitions. Required.
	Tables []string
	// Command is run twice. Required.
	Command []string
	// FreezeWhen is a query; the first run is frozen when its first column is true. FreezeAfter
	// is the time after which it is frozen. One of them is required; the earlier counts.
	FreezeWhen  string
	FreezeAfter time.Duration
	// LockEndsAfter is the time for which the first run is frozen before the second is started:
	// until its lock has run out. Required.
	LockEndsAfter time.Duration
	// SecondFor is the time after which a second run that doesn't end by itself is frozen, too.
	// Then the first goes on for half of LockEndsAfter, in which the second's lock doesn't end. 0
	// waits for the second's end, and for the first's.
	SecondFor time.Duration
	// Within bounds each wait for a run. Required.
	Within time.Duration
	// Control is how long the tables are watched before and after the play for writes of others.
	// Required.
	Control time.Duration
	// TermGrace is the time from SIGTERM to SIGKILL for what is left of the runs at the end.
	TermGrace time.Duration
	// Output gets the output of both runs; nil is /dev/null.
	Output *os.File
	// Tell gets each step, with a line for people; nil for none.
	Tell func(step Step, line string)

	explored *explored // nil outside of Explore
	mark     string    // of the worker's processes, in Explore with several
}

// Step is what happens in a play.
type Step int

// Other are steps that nobody needs to tell apart.
const (
	Other Step = iota
	FirstStarted
	FirstFrozen
	SecondStarted
	FirstThawed
)

// Validate reports what is missing or contradictory.
func (o Options) Validate() error {
	switch {
	case len(o.Tables) == 0:
		return errors.New("no table to watch")
	case len(o.Command) == 0:
		return errors.New("no command")
	case o.Within <= 0 || o.Control <= 0:
		return errors.New("the waits have no bounds")
	case o.explored != nil:
		return nil
	case o.FreezeWhen == "" && o.FreezeAfter <= 0:
		return errors.New("neither a query nor a time says when to freeze the first run")
	case o.LockEndsAfter <= 0:
		return errors.New("not said when the lock ends")
	}
	return nil
}

// Verdict is what a play has shown.
type Verdict string

// What a play can show.
const (
	Stale   Verdict = "stale"   // the first run wrote when the second had the turn, or had had it
	None    Verdict = "none"    // it didn't
	Unknown Verdict = "unknown" // the play doesn't show it
)

// Report is what a play has shown.
type Report struct {
	Verdict  Verdict  `json:"verdict" says:"stale, none, or unknown: the play doesn't show it"`
	Reason   string   `json:"reason,omitempty" says:"why it is unknown; the text may change"`
	First    Run      `json:"first" says:"the first run"`
	Second   Run      `json:"second" says:"the second run"`
	Writes   []Write  `json:"writes" says:"what the first run changed after the second had begun"`
	Decoded  []string `json:"decoded" says:"tables whose changes were decoded from the server's log"`
	Compared []string `json:"compared" says:"tables that were compared"`
	Notes    []string `json:"notes" says:"what limits the verdict; the texts may change"`
}

// Run is one of the two runs.
type Run struct {
	Started *time.Time `json:"started" says:"when it was started"`
	Frozen  *time.Time `json:"frozen" says:"when it was frozen"`
	Thawed  *time.Time `json:"thawed" says:"when it went on"`
	Ended   *time.Time `json:"ended" says:"when it ended by itself"`
	Status  *int       `json:"status" says:"its exit status, or 128 and the number of the signal that ended it"`
	Writes  int        `json:"writes" says:"its changes in the watched tables in its own turn"`
}

// openTime bounds the wait for earlier transactions, without whose end no slot can be made.
const openTime = 30 * time.Second

// Play plays it with a connection that is the caller's. The error says that the play could not be
// made or was interrupted; then there is no report. In each case nothing of the runs is left.
func Play(ctx context.Context, conn *pgx.Conn, o Options) (_ *Report, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	d, err := openWithin(ctx, conn, o.Tables)
	if err != nil {
		return nil, err
	}
	defer d.close(ctx)
	return d.play(ctx, o)
}

func openWithin(ctx context.Context, conn *pgx.Conn, tables []string) (*database, error) {
	opening, cancel := context.WithTimeoutCause(ctx, openTime, fmt.Errorf("decoding can't begin: a transaction that was open before has not ended within %v", openTime))
	defer cancel()
	d, err := open(opening, conn, tables)
	if err != nil {
		return nil, errors.Join(context.Cause(opening), err)
	}
	return d, nil
}

// play is one play. No run of it is left when it returns.
func (d *database) play(ctx context.Context, o Options) (_ *Report, err error) {
	if o.Tell == nil {
		o.Tell = func(Step, string) {}
	}
	p := &play{Options: o, database: d, report: &Report{Writes: []Write{}, Decoded: []string{}, Compared: []string{}, Notes: []string{}}}
	defer func() { err = errors.Join(err, p.end()) }()
	unknown := unknownError("")
	if err := p.run(ctx); errors.As(err, &unknown) {
		p.report.Verdict, p.report.Reason = Unknown, string(unknown)
	} else if err != nil {
		return nil, err
	}
	return p.report, nil
}

// unknownError says why a play shows nothing.
type unknownError string

func (e unknownError) Error() string { return string(e) }

func unknown(format string, args ...any) error { return unknownError(fmt.Sprintf(format, args...)) }
