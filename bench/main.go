// Command bench measures speed side by side: the same statements direct, through
// PgBouncer in session mode, and through the proxy, unfenced and fenced; and
// compares it with what is to be reached. It starts all servers itself.
//
// pgbench does the work where it can. All ways of one kind run in turn, round after
// round, and are compared round by round: a machine that is slow for a while then is so
// for all of them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"
)

type flags struct {
	rounds, seconds int
	only            string
	out             string
	compare         string
}

func main() {
	log.SetFlags(0)
	var f flags
	flag.IntVar(&f.rounds, "rounds", 3, "how often each measurement is made")
	flag.IntVar(&f.seconds, "seconds", 8, "how long one measurement lasts, in seconds; pgbench runs half as long again before")
	flag.StringVar(&f.only, "only", "", "regular expression: measure only what it matches, of names such as insert/prepared/16/PgBouncer, isolated/simple/8/direct, takeover, trips, sessions, texts, relay, leases and core")
	flag.StringVar(&f.out, "out", "", "file to write the page of a whole run to; standard output if empty")
	flag.StringVar(&f.compare, "compare", "", "another wirefence binary: compare this tree's proxy with it, and nothing else")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := measure(ctx, f); err != nil {
		log.Fatal(err)
	}
}

func measure(ctx context.Context, f flags) error {
	if f.rounds < 1 || f.seconds < 1 {
		return fmt.Errorf("-rounds and -seconds must be at least 1")
	}
	only, err := regexp.Compile(f.only)
	if err != nil {
		return err
	}
	if f.out != "" && (f.only != "" || f.compare != "") {
		return fmt.Errorf("-out with -only or -compare: a page from a part of the runs would pass for the whole")
	}
	b := &book{flags: f, when: time.Now(), busy: loadAverage()}
	w, err := newWorld(ctx, f.compare)
	if err != nil {
		return err
	}
	defer w.close()
	if f.compare != "" {
		if err := b.measureRuns(ctx, w, runs(beside(workloads), only.MatchString)); err != nil {
			return err
		}
		fmt.Print(b.comparison())
		return nil
	}
	if b.versions, err = w.versions(ctx); err != nil {
		return err
	}
	err = b.measureAll(ctx, w, only.MatchString)
	if f.out == "" || err != nil {
		fmt.Print(b.page()) // what there is
		return err
	}
	return os.WriteFile(f.out, []byte(b.page()), 0o644)
}

// measureAll measures what only matches. If a part fails, the others are measured all the same.
func (b *book) measureAll(ctx context.Context, w *world, only func(string) bool) error {
	failed := b.measureRuns(ctx, w, runs(workloads, only))
	for _, part := range []struct {
		name    string
		measure func(context.Context, *world) error
	}{
		{"trips", b.measureTrips}, {"takeover", b.measureTakeovers}, {"sessions", b.measureSessions}, {"texts", b.measureTexts},
		{"relay", b.measureRelay}, {"leases", b.measureLeases}, {"core", b.measureCore},
	} {
		if !only(part.name) {
			continue
		}
		log.Print(part.name)
		if err := part.measure(ctx, w); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", part.name, err))
		}
	}
	return failed
}

// measureRuns makes all rounds. The order within a run turns, so that no way always
// follows the same one.
func (b *book) measureRuns(ctx context.Context, w *world, all []run) error {
	for round := range b.flags.rounds {
		for _, r := range all {
			log.Printf("round %d of %d: %s", round+1, b.flags.rounds, r.row.setting())
			for i := range r.ways {
				by := r.ways[(i+round)%len(r.ways)]
				s, err := w.measure(ctx, r, by, b.flags.seconds)
				if err != nil {
					return fmt.Errorf("%s: %w", r.of(by), err)
				}
				b.add(r.of(by), s)
			}
		}
	}
	return nil
}
