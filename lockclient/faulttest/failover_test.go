//go:build linux

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
)

// failover is a run in which PostgreSQL under Patroni changes its primary repeatedly,
// while two sidecars compete for a lease in the same PostgreSQL, and an application
// writes through each.
type failover struct {
	*servers.Patroni
	change   change
	primary  *servers.PatroniMember
	timeline int
	began    string // where the log was when the applications began
	steps    *stack.Steps
	random   *rand.Rand

	*observations
	sidecars     []*sidecar
	applications []*application
	moves        []move
	end          func() // of the applications; it may be called twice
}

// grants are the tokens of the sidecars, with their holders.
func (f *failover) grants() (all []*attempt) {
	for _, s := range f.sidecars {
		for _, token := range s.grants() {
			all = append(all, &attempt{by: s.name, token: token, rows: -1})
		}
	}
	return all
}

// lastWrite is when a write was last acknowledged. The observations are locked.
func (f *failover) lastWrite() (at int64) {
	for _, a := range f.applications {
		if n := len(a.wrote); n > 0 {
			at = max(at, a.wrote[n-1].at)
		}
	}
	return at
}

// sidecarTTL is the TTL of the sidecars' lease.
const sidecarTTL = 3 * time.Second

// openFailover starts all servers, sidecars and applications, and returns when all are
// served.
func openFailover(t *testing.T, c change, d defect, seed uint64) *failover {
	t.Helper()
	cluster := stack.Started(servers.StartPatroni(t.Context())).EndWith(t)
	f := &failover{Patroni: cluster, change: c, primary: cluster.Members[0], timeline: 1, observations: newObservations(), random: rand.New(rand.NewPCG(seed, 1))}
	f.prepare(t, d)
	hosts := cluster.Members[0].Server() + "," + cluster.Members[1].Server()
	applying, end := context.WithCancel(context.Background())
	for i, name := range []string{"a", "b"} {
		s := startSidecar(t, name, "WIREFENCE_TTL="+sidecarTTL.String(),
			"WIREFENCE_UPSTREAM=postgres://"+hosts+"/?sslmode=disable&target_session_attrs=read-write",
			"WIREFENCE_DATABASE_URL=postgres://"+issuerRole+"@"+hosts+"/postgres?sslmode=disable&target_session_attrs=read-write")
		f.sidecars = append(f.sidecars, s)
		f.applications = append(f.applications, &application{
			name: name, url: fmt.Sprintf("postgres://%s@%s/postgres?sslmode=disable", writerRole, s.Addr()),
			random: rand.New(rand.NewPCG(seed, uint64(2+i))), observations: f.observations, served: map[int]int64{},
		})
	}
	var writing sync.WaitGroup
	for _, a := range f.applications {
		writing.Go(func() { a.run(applying) })
	}
	f.end = func() {
		end()
		writing.Wait()
	}
	t.Cleanup(f.end)
	return f
}

// survivorSchema is the schema of the applications. A transaction that records a token of
// the resource also notes it here: the history has no row if one sidecar gets the lease
// again.
const survivorSchema = `
	CREATE TABLE journal (id text PRIMARY KEY, token bigint NOT NULL DEFAULT 0, timeline int NOT NULL DEFAULT ` + timelineOf + `);
	CREATE TABLE seals (n bigint GENERATED ALWAYS AS IDENTITY, token bigint NOT NULL, holder text);
	CREATE FUNCTION note_seal() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$BEGIN
		IF TG_OP = 'INSERT' OR NEW.last_token <> OLD.last_token THEN
			INSERT INTO seals (token, holder) VALUES (NEW.last_token, NEW.holder);
		END IF;
		RETURN NULL;
	END$$;
	CREATE TRIGGER note_seal AFTER INSERT OR UPDATE ON wirefence.resource_locks FOR EACH ROW EXECUTE FUNCTION note_seal();
	CREATE ROLE ` + writerRole + ` LOGIN; CREATE ROLE ` + issuerRole + ` LOGIN IN ROLE wirefence_issuer;
	GRANT SELECT, INSERT ON journal TO ` + writerRole

func (f *failover) prepare(t *testing.T, d defect) {
	t.Helper()
	conn := stack.Connect(t, f.primary.URL("postgres"))
	if err := migrations.Apply(t.Context(), conn, nil); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		survivorSchema, serverDefects[d],
		fmt.Sprintf("SELECT wirefence.seal('%s', 1, 'the test')", resource),
		fmt.Sprintf("UPDATE wirefence.resource_locks SET preempt_after = '%d ms'", preemptAfter.Milliseconds()),
	} {
		stack.MustExec(t, conn, sql)
	}
	f.steps = stack.TellStepsAlone(t, conn, "journal", string(resource))
	if err := conn.QueryRow(t.Context(), "SELECT pg_current_wal_flush_lsn()::text").Scan(&f.began); err != nil {
		t.Fatal(err)
	}
}

// changePrimaries lets PostgreSQL change its primary this many times.
func (f *failover) changePrimaries(ctx context.Context, times int) error {
	if err := f.recovered(ctx); err != nil {
		return err
	}
	for n := range times {
		if !wait(ctx, between(f.random, 500*time.Millisecond, 2*time.Second)) {
			return ctx.Err()
		}
		if err := f.move(ctx, n); err != nil {
			return fmt.Errorf("%s %d: %w", f.change.name, n+1, err)
		}
	}
	return nil
}

// move changes the primary once and waits for the recovery.
func (f *failover) move(ctx context.Context, n int) error {
	next := f.Other(f.primary)
	type end struct {
		at  int64
		err error
	}
	promoted := make(chan end, 1)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		err := next.AwaitPrimary(watching)
		promoted <- end{now(), err}
	}()
	struck, mend, early, err := f.change.strike(f, n)
	if err != nil {
		stop()
		<-promoted
		return err
	}
	up := <-promoted
	if up.err != nil {
		return up.err
	}
	f.primary = next
	f.timeline++
	if early {
		wait(ctx, between(f.random, 0, 3*time.Second))
		if err := mend(); err != nil {
			return err
		}
	}
	if err := f.recovered(ctx); err != nil {
		return err
	}
	f.mu.Lock()
	wrote, silent := f.firstWrite()
	f.mu.Unlock()
	f.moves = append(f.moves, move{struck, up.at, wrote, silent})
	if !early {
		if err := mend(); err != nil {
			return err
		}
	}
	return f.AwaitReplication(ctx, f.primary)
}

// recovered waits until the primary serves both applications, one of them as writer.
func (f *failover) recovered(ctx context.Context) error {
	return f.await(ctx, fmt.Sprintf("applications that are served on timeline %d", f.timeline), func() bool {
		wrote, _ := f.firstWrite()
		for _, a := range f.applications {
			if a.served[f.timeline] == 0 {
				return false
			}
		}
		return wrote > 0
	})
}

// firstWrite returns when the first write was acknowledged on the present timeline, and
// the time since the write before. The observations are locked.
func (f *failover) firstWrite() (first int64, silent time.Duration) {
	for _, a := range f.applications {
		for _, w := range a.wrote {
			if w.timeline == f.timeline && (first == 0 || w.at < first) {
				first = w.at
			}
		}
	}
	before := int64(0)
	for _, a := range f.applications {
		for _, w := range a.wrote {
			if w.at < first {
				before = max(before, w.at)
			}
		}
	}
	return first, time.Duration(first - before)
}

// handOver drains the leading sidecar, and waits until the other's application writes: a
// sidecar that has only stood by since the last change can lead as well.
func (f *failover) handOver(ctx context.Context) error {
	f.mu.Lock()
	last := func(a *application) int64 { return a.wrote[len(a.wrote)-1].at }
	leader, other := 0, 1
	if len(f.applications[0].wrote) == 0 || len(f.applications[1].wrote) > 0 && last(f.applications[1]) > last(f.applications[0]) {
		leader, other = 1, 0
	}
	had := len(f.applications[other].wrote)
	f.mu.Unlock()
	if err := f.sidecars[leader].Drain(); err != nil {
		return err
	}
	return f.await(ctx, "the other sidecar to lead", func() bool { return len(f.applications[other].wrote) > had })
}

// runChange lets PostgreSQL change its primary in one way, and judges the result.
func runChange(t *testing.T, c change, d defect) takeovers {
	t.Helper()
	s := theSeed()
	t.Logf("-seed %d", s)
	f := openFailover(t, c, d, s)
	t.Cleanup(func() { f.keepLogs(t) })
	if err := f.changePrimaries(t.Context(), *failovers); err != nil {
		t.Fatal(err)
	}
	for _, s := range f.sidecars {
		if s.Ended() {
			t.Errorf("sidecar %s has ended:\n%s", s.name, s.Log())
		}
	}
	if err := f.handOver(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.end()
	survivor, err := f.readSurvivor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	result := f.judge(survivor)
	t.Log(result, f.steps.Counts())
	return result
}

// keepLogs writes the logs of all processes to a folder, for the analysis of a failure.
func (f *failover) keepLogs(t *testing.T) {
	if !t.Failed() {
		return
	}
	dir, err := os.MkdirTemp("", "wirefence-failover-")
	keep := func(name, log string) {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name+".log"), []byte(log), 0o600))
	}
	for _, m := range f.Members {
		keep("member-"+m.Name, m.Log())
	}
	for _, s := range f.sidecars {
		keep("sidecar-"+s.name, s.Log())
	}
	t.Logf("the logs are in %s (%v)", dir, err)
}
