// Package zombietest explores in Go's tests what happens to a job that freezes under its lock, as
// `wirefence zombie --explore` does: at every moment, while another run takes over.
//
// The package imports internal/connstring and internal/zombie.
package zombietest

import (
	"cmp"
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/connstring"
	"github.com/wirefence/wirefence/internal/zombie"
)

// Job is a job around a lock, on a test's PostgreSQL.
type Job struct {
	// Database is a connection string to the server itself, of a role that may read Tables; with
	// REPLICATION it sees all changes. Required.
	Database string
	// Tables are those in which the job writes. Required.
	Tables []string
	// Run is the job. It finds the database by libpq's variables, or by a URL in its environment;
	// and Env is added to that. It is run in processes of their own: the test's binary, which exits
	// in Explore, so that no cleanup of TestMain and of the test runs there. Command is run instead, if
	// there is one.
	Run     func(context.Context) error
	Command []string
	Env     []string
	// Reset is a command for sh that puts the data back. Required.
	Reset string
	// EndLock is a command for sh that ends the job's lock; with none it ends by itself within
	// LockEndsAfter.
	EndLock       string
	LockEndsAfter time.Duration
	// Within bounds each wait for a run; 0 is a minute.
	Within time.Duration
	// Jobs is how many moments are played at once, if more than one: each in a copy of the database,
	// for which nobody may be connected to it. A lock that isn't in the database is one lock for all.
	Jobs int
}

// inRun is the variable that has a test run its job, and names the test.
const inRun = "ZOMBIETEST"

// Explore fails the test if there is a moment at which a frozen run overwrites what another has done
// since, or if it can't be judged; it says why, and shows the smallest schedule. Nobody else may write
// to the tables meanwhile. The test's own code ahead of it is run in each run of Job.Run.
func Explore(t *testing.T, j Job) {
	t.Helper()
	if j.Run == nil && j.Command == nil {
		t.Fatal("the job has neither Run nor Command")
	}
	if os.Getenv(inRun) == t.Name() {
		status := 0
		if err := j.Run(t.Context()); err != nil {
			println(err.Error())
			status = 1
		}
		os.Exit(status)
	}
	cfg, err := connstring.Conn(j.Database)
	if err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), j.Env...)
	if j.Command == nil {
		binary, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		j.Command = []string{binary, "-test.run", "^" + strings.ReplaceAll(regexp.QuoteMeta(t.Name()), "/", "$/^") + "$", "-test.count", "1"}
		env = append(env, inRun+"="+t.Name())
	}
	log, err := os.CreateTemp(t.TempDir(), "runs")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	report, err := zombie.Explore(t.Context(), cfg, zombie.Exploring{
		Options: zombie.Options{
			Tables: j.Tables, Command: j.Command, LockEndsAfter: j.LockEndsAfter,
			Within: cmp.Or(j.Within, time.Minute), Control: time.Second, TermGrace: time.Second, Output: log,
		},
		Env: env, Reset: j.Reset, EndLock: j.EndLock, Jobs: j.Jobs,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range report.Windows {
		t.Logf("messages %d to %d, behind %q, up to before %q: %s", w.From, w.To, w.Behind, w.Before, w.Shows)
	}
	for _, note := range report.Notes {
		t.Log(note)
	}
	switch report.Verdict {
	case zombie.Stale:
		t.Errorf("a run that goes on behind another's turn overwrites it:\n%s", report.Schedule)
	case zombie.Unknown:
		output, _ := os.ReadFile(log.Name())
		t.Errorf("%s\n%s", report.Reason, output)
	}
}
