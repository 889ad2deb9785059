package fencingtest

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
)

// slot is a replication slot, which has the order of commits.
type slot struct {
	w    *world
	name string
}

func newSlot(t *testing.T, w *world) *slot {
	t.Helper()
	s := &slot{w, "slot_" + w.Name}
	stack.MustExec(t, w.Admin, "select pg_create_logical_replication_slot($1, 'test_decoding')", s.name)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stack.Patience)
		defer cancel()
		if _, err := w.Admin.Exec(ctx, "select pg_drop_replication_slot($1)", s.name); err != nil {
			t.Error(err)
		}
	})
	return s
}

var (
	decodedRow  = regexp.MustCompile(`^table public\.jobs: INSERT: token\[bigint\]:(\d+) note\[text\]:(?:'([^']*)'|null)$`)
	decodedSeal = regexp.MustCompile(`^table wirefence\.resource_locks: UPDATE: .*last_token\[bigint\]:(\d+) `)
)

// commits returns the tokens of the rows in jobs in the order of their commits,
// with the negative of a token where it was recorded as the resource's last.
func (s *slot) commits(t *testing.T) (tokens []int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stack.Patience)
	defer cancel()
	rows, err := s.w.Admin.Query(ctx, "select data from pg_logical_slot_get_changes($1, null, null, 'include-xids', '0')", s.name)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		if m := decodedRow.FindStringSubmatch(line); m != nil {
			token, _ := strconv.ParseInt(m[1], 10, 64)
			tokens = append(tokens, token)
			if m[2] == "idle" {
				t.Error("the idle zombie's row was committed")
			}
		} else if m := decodedSeal.FindStringSubmatch(line); m != nil {
			token, _ := strconv.ParseInt(m[1], 10, 64)
			tokens = append(tokens, -token)
		} else if strings.HasPrefix(line, "table public.jobs") {
			t.Errorf("not understood: %s", line)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return tokens
}

// loop is a client that writes without a pause.
type loop struct {
	*client
	token int
	way   int
}

const ways = 8

// newLoop connects; the ways take turns between carriers, protocols and blocks.
func (w *world) newLoop(t *testing.T, token, way int) *loop {
	t.Helper()
	l := &loop{w.connect(t, "user", "app"), token, way % ways}
	if l.way&1 == 0 {
		l.Must(fmt.Sprintf("set wirefence.token = 'orders=%d'", token))
	}
	return l
}

// write commits one row, or returns the error.
func (l *loop) write() error {
	sql := fmt.Sprintf("insert into jobs values (%d)", l.token)
	if l.way&1 == 1 {
		sql += fmt.Sprintf(" /*wirefence.token='orders=%d'*/", l.token)
	}
	p := protocols[l.way>>1&1]
	if l.way&4 == 0 {
		return p.run(l.client, sql)
	}
	err := p.run(l.client, "begin")
	if err == nil {
		err = p.run(l.client, sql)
	}
	if err != nil {
		if !l.Ended() {
			_ = l.Simple("rollback")
		}
		return err
	}
	return p.run(l.client, "commit")
}

// run writes until it is refused. written is told of each row.
func (l *loop) run(written *gate, deadline context.Context) error {
	for deadline.Err() == nil {
		if err := l.write(); err != nil {
			return err
		}
		written.pass()
	}
	return deadline.Err()
}

const preemptAfter = 500 * time.Millisecond

func TestTakeoverBySeal(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w.unseal(t)
		w.Seal(t, "orders", 33)
		testTakeover(t, w, func() {
			began := time.Now()
			sealed, err := fence.Seal(t.Context(), w.Admin, fence.Grant{Resource: "orders", Token: 34, Holder: "b"})
			if took := time.Since(began); err != nil || !sealed || took > preemptAfter+time.Second {
				t.Errorf("sealed: %v after %v, %v", sealed, took, err)
			}
		})
	})
}

// The tokens come from any lock service. Nobody seals, and the first writer with 34 takes over.
func TestTakeoverByUse(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w.unseal(t)
		w.connect(t).Must("insert into cell values (4, 0) /*wirefence.token='orders=33'*/")
		if advance := stack.Value[string](t, w.DB, "select advance from wirefence.resource_locks"); advance != "use" {
			t.Fatalf("the resource advances on %s", advance)
		}
		testTakeover(t, w, func() {})
	})
}

func testTakeover(t *testing.T, w *world, takeOver func()) {
	w.preempt(t, preemptAfter)
	order := newSlot(t, w)
	zombie := w.connect(t, "user", "app")
	zombie.Must("begin", "insert into jobs values (33, 'idle') /*wirefence.token='orders=33'*/")

	deadline, cancel := context.WithTimeout(t.Context(), stack.Patience)
	defer cancel()
	var loops sync.WaitGroup
	older, newer := newGate(16*5), newGate(4*5)
	for i := range 16 {
		l := w.newLoop(t, 33, i)
		loops.Go(func() {
			// On a busy machine one statement may take longer than preemptAfter:
			// then it is ended like any older transaction.
			if got := stack.State(l.run(older, deadline)); got != "WF001" && got != "57P01" {
				t.Errorf("a writer with token 33, way %d, ended with %q", l.way, got)
			}
			// A second try is refused too.
			if !l.Ended() {
				stack.WantState(t, l.write(), "WF001", l.way)
			}
		})
	}
	older.wait(t)
	takeOver()
	done, stop := context.WithCancel(deadline)
	for i := range 4 {
		l := w.newLoop(t, 34, i*3)
		loops.Go(func() {
			if err := l.run(newer, done); err != context.Canceled {
				t.Errorf("a writer with token 34, way %d, ended with %v", l.way, err)
			}
		})
	}
	newer.wait(t)
	stop()
	loops.Wait()
	if err := zombie.Simple("commit"); err == nil {
		t.Error("the idle zombie's COMMIT succeeded")
	}

	commits := order.commits(t)
	var last int64
	counts := map[int64]int{}
	for i, token := range commits {
		counts[token]++
		recorded := max(token, -token)
		if recorded < last {
			t.Fatalf("commit %d of %d has token %d behind %d", i, len(commits), recorded, last)
		}
		last = recorded
	}
	if counts[33] < 16*5 || counts[34] < 4*5 || counts[-34] != 1 {
		t.Errorf("commits by token: %v", counts)
	}
}

// gate lets test code wait for what others count.
type gate struct {
	mu    sync.Mutex
	count int
	want  int
	open  chan struct{}
}

func newGate(want int) *gate { return &gate{want: want, open: make(chan struct{})} }

func (g *gate) pass() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.count++; g.count == g.want {
		close(g.open)
	}
}

func (g *gate) wait(t *testing.T) {
	t.Helper()
	select {
	case <-g.open:
	case <-time.After(stack.Patience):
		t.Fatal("nothing happened")
	}
}
