// Command bench measures speed side by side: the same statements direct, through
// PgBouncer in session mode, and through the proxy, unfenced and fenced; and
// compares it with what is to be reached. It starts all servers itself.
//
// All ways of one kind run in turn, round after round, and are compared round
// by round: a machine that is slow for a while then is so for all of them.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type flags struct {
	rounds, seconds int
	clients         string
	only            string
	out             string
	binary          string
	compare         string
	hold            bool
}

// wholeClients are the numbers of clients of a whole run.
const wholeClients = "16,64"

func main() {
	log.SetFlags(0)
	var f flags
	flag.IntVar(&f.rounds, "rounds", 4, "how often each measurement is made")
	flag.IntVar(&f.seconds, "seconds", 2, "how long one measurement lasts, in seconds; pgbench runs half as long again before")
	flag.StringVar(&f.clients, "clients", wholeClients, "numbers of clients, separated by commas")
	flag.StringVar(&f.only, "only", "", "regular expression: measure only what it matches, of names such as insert/prepared/16/PgBouncer, guards/prepared/16/direct, isolated, takeover, sessions, logins, streams, copy, bounds, leases and core")
	flag.StringVar(&f.out, "out", "", "file to write a summary of a whole run to; none if empty")
	flag.StringVar(&f.compare, "compare", "", "commit: compare this tree's proxy with that commit's, and nothing else")
	flag.StringVar(&f.binary, "binary", "", "wirefence binary to measure, instead of building ./cmd/wirefence")
	flag.BoolVar(&f.hold, "hold", false, "start the servers, print their ports and process ids, and wait: for profiling by hand")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, f); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, f flags) error {
	clients, err := parseClients(f.clients)
	if err != nil {
		return err
	}
	if f.rounds < 1 || f.seconds < 1 {
		return fmt.Errorf("-rounds and -seconds must be at least 1")
	}
	only, err := regexp.Compile(f.only)
	if err != nil {
		return err
	}
	if f.out != "" && (f.only != "" || f.clients != wholeClients) {
		return fmt.Errorf("-out with -only or other -clients: a page from a part of the runs would pass for the whole")
	}
	if f.compare != "" {
		return compare(ctx, f, clients, only.MatchString)
	}
	b := &book{flags: f, when: time.Now(), busy: loadAverage()}
	w, err := newWorld(ctx, f.binary, "")
	if err != nil {
		return err
	}
	defer w.close()
	if f.hold {
		return w.hold(ctx)
	}
	if b.versions, err = w.versions(ctx); err != nil {
		return err
	}
	if err := b.measureAll(ctx, w, clients, only.MatchString); err != nil {
		return err
	}
	fmt.Print(b.markdown())
	if f.out == "" {
		return nil
	}
	return os.WriteFile(f.out, []byte(b.summary()), 0o644)
}

// measureAll measures what only matches.
func (b *book) measureAll(ctx context.Context, w *world, clients []int, only func(string) bool) error {
	rounds, seconds := b.flags.rounds, b.flags.seconds
	for _, part := range []struct {
		name    string // none has names of its own
		measure func() error
	}{
		{"sessions", func() (err error) {
			if b.sessions, err = w.measureSessions(ctx); err == nil {
				b.firsts, err = w.measureFirsts(ctx)
			}
			return err
		}},
		{"", func() error {
			return b.measure(ctx, w, groups(slices.Concat(workloads, guardWorkloads(), rowWorkloads()), clients, only))
		}},
		{"isolated", func() error { return b.measureIsolated(ctx, w) }},
		{"takeover", func() (err error) { b.takeovers, err = w.measureTakeovers(ctx, rounds, seconds); return err }},
		{"logins", func() (err error) { b.logins, err = w.measureLogins(ctx, rounds, seconds); return err }},
		{"streams", func() (err error) { b.streams, err = w.measureStreams(ctx, rounds, seconds); return err }},
		{"copy", func() (err error) { b.copies, err = w.measureCopies(ctx, min(rounds, 3)); return err }},
		{"bounds", func() (err error) { b.bounds, err = w.measureBounds(ctx); return err }},
		{"leases", func() (err error) { b.leases, err = measureLeases(ctx, rounds, seconds); return err }},
		{"core", func() (err error) { b.core, err = measureCore(ctx); return err }},
	} {
		if part.name != "" {
			if !only(part.name) {
				continue
			}
			log.Print(part.name)
		}
		if err := part.measure(); err != nil {
			return err
		}
	}
	return nil
}

// measure makes all rounds. The order within a group turns, so that none always
// follows the same one.
func (b *book) measure(ctx context.Context, w *world, all []group) error {
	for round := range b.flags.rounds {
		for _, g := range all {
			log.Printf("round %d of %d: %s", round+1, b.flags.rounds, g)
			for i := range g.workload.ways {
				by := g.workload.ways[(i+round)%len(g.workload.ways)]
				if g.workload.writes {
					if err := w.level(ctx); err != nil {
						return err
					}
				}
				s, err := w.measure(ctx, g, by, b.flags.seconds)
				if err != nil {
					return err
				}
				b.results.add(g, by, s)
			}
		}
	}
	return nil
}

func parseClients(list string) (all []int, err error) {
	for part := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < 1 || n > maxClients {
			return nil, fmt.Errorf("-clients: %q is not a number from 1 to %d", part, maxClients)
		}
		all = append(all, n)
	}
	return all, nil
}
