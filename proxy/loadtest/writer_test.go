package loadtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/fence"
)

// writer runs one transaction after another, each until it is committed or
// refused.
type writer struct {
	*crowd
	number int
	r      *rand.Rand
	conns  [2]*pgconn.PgConn // direct, and through the proxy
	recent [2][]held         // by the last transactions of each, the latest first
	tx     int64
}

// held is what a transaction held, and from when to when at most.
type held struct {
	t            tokens
	began, ended time.Time
	// revoked is how many revocations of its resources had ended when it began.
	revoked int64
}

// moment is what a takeover gives to those who come in when it has waited for long
// enough, and looks round.
const moment = 250 * time.Millisecond

// firstLook is how long a takeover's first look may take on a busy machine. preempt_after
// counts from before it, so a transaction that has begun meanwhile has that much less time.
const firstLook = 100 * time.Millisecond

// mayBeEnded reports whether a takeover could have found the transaction in its way
// for long enough, or a revocation.
func (h held) mayBeEnded() bool {
	revoking := int64(0)
	for r := range h.t {
		revoking += r.revoking.Load()
		if r.preemptAfter != fence.Never && time.Since(h.began) >= min(r.preemptAfter, moment)-firstLook {
			return true
		}
	}
	return revoking > h.revoked
}

// metAgain reports whether a takeover that ends whom it meets twice, with three tenths of a second
// between, could have met the session in an earlier transaction, too.
func metAgain(recent []held) bool {
	return slices.ContainsFunc(recent[1:], func(h held) bool {
		for r := range h.t {
			if _, again := recent[0].t[r]; again && r.preemptAfter != fence.Never {
				return true
			}
		}
		return false
	})
}

// mayHaveIdled reports whether the session could have held the transaction's fence
// beyond its end, for so long that a takeover ends it whatever preempt_after is. A
// holder that has just gone idle meets that on a machine that keeps it waiting.
func (h held) mayHaveIdled() bool { return time.Since(h.began) >= moment }

// lag is how long it may take on a busy machine from a last look at an idle backend until
// that is ended.
const lag = 50 * time.Millisecond

// fate is how a transaction ended.
type fate int

const (
	committed fate = iota
	refused        // by class WF
	conflict       // 40001, and is tried again
	ended          // its backend, by a takeover: it may have committed before
	faulty
)

// bound is how long a transaction may take. Nobody stalls for long, and whoever
// waits has others before it, but not without end.
const bound = 3 * time.Minute

// retries is how often a transaction may come upon 40001. SERIALIZABLE promises
// progress to somebody, not to each.
const retries = 200

func newWriter(c *crowd, number int) *writer {
	return &writer{crowd: c, number: number, r: rand.New(rand.NewPCG(c.seed, uint64(number))), tx: int64(number) * 1e9}
}

func (w *writer) transact(ctx context.Context) {
	p := drawPlan(w.r, w.resources)
	began := time.Now()
	for try := 0; ; try++ {
		if try > retries {
			w.fault("a transaction came upon 40001 for the %d. time: %v", try, p)
			return
		}
		f := w.attempt(ctx, p)
		w.count(p, f)
		if f != conflict || ctx.Err() != nil {
			w.took(time.Since(began), try)
			return
		}
	}
}

// attempt runs a plan with the tokens that are believed now.
func (w *writer) attempt(ctx context.Context, p plan) fate {
	w.tx++
	t, fresh := w.drawTokens(p)
	h := held{t: t, began: time.Now()}
	for r := range t {
		h.revoked += r.revoked.Load()
	}
	sql := p.statements(w.number, w.tx, t)
	at, err := w.send(ctx, p, sql)
	h.ended = time.Now()
	recent := append([]held{h}, w.recent[p.way()]...)
	for len(recent) > 4 && time.Since(recent[len(recent)-1].ended) > time.Second {
		recent = recent[:len(recent)-1]
	}
	w.recent[p.way()] = recent
	// Nothing of it need have run, or the end was on its way when it began.
	idle := p.proxied && (p.joined || at == sql[0] || time.Since(h.began) < lag)
	f, fault := w.judge(p, t, err, idle)
	if fault != "" && ctx.Err() == nil {
		w.fault("%s: %s\nat %s\nof %v, transaction %d:\n  %s", fault, describe(err), at, p, w.tx, strings.Join(sql, ";\n  "))
	}
	if f == committed {
		for _, r := range fresh {
			raise(&r.believed, t[r])
		}
	}
	w.journal.told(w.tx, p, f)
	return f
}

// drawTokens takes for each resource the token believed to be current, seldom a
// former one, or a higher one for those that advance by use.
func (w *writer) drawTokens(p plan) (t tokens, fresh []*resource) {
	t = tokens{}
	for _, r := range p.touches() {
		if _, twice := t[r]; twice {
			continue
		}
		token := r.believed.Load()
		switch {
		case token == 0 || r.byUse && w.r.IntN(25) == 0:
			token = r.next.Add(1)
			fresh = append(fresh, r)
		case token > 1 && w.r.IntN(400) == 0:
			token--
		}
		t[r] = token
	}
	return t, fresh
}

// send runs the statements. It returns the one that failed.
func (w *writer) send(ctx context.Context, p plan, sql []string) (at string, err error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	conn, err := w.conn(ctx, p)
	if err != nil {
		return "the login", err
	}
	if p.joined {
		sql = []string{strings.Join(sql, ";")}
	}
	for i, statement := range sql {
		if i == len(sql)-1 && p.stall > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(p.stall):
			}
		}
		if err = run(ctx, conn, statement, p.extended); err != nil {
			at = statement
			break
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		w.hung()
	}
	if err != nil && !conn.IsClosed() {
		_, _ = conn.Exec(ctx, "ROLLBACK").ReadAll()
	}
	return at, err
}

func run(ctx context.Context, conn *pgconn.PgConn, sql string, extended bool) error {
	if extended {
		return conn.ExecParams(ctx, sql, nil, nil, nil, nil).Read().Err
	}
	_, err := conn.Exec(ctx, sql).ReadAll()
	return err
}

// conn is the connection of one way, opened again if a takeover has ended it.
func (w *writer) conn(ctx context.Context, p plan) (*pgconn.PgConn, error) {
	way := p.way()
	if w.conns[way] == nil || w.conns[way].IsClosed() {
		conn, err := pgconn.Connect(ctx, w.url("app", p.proxied))
		if err != nil {
			return nil, err
		}
		w.conns[way] = conn
	}
	return w.conns[way], nil
}

func (w *writer) close() {
	for _, conn := range w.conns {
		if conn != nil {
			_ = conn.Close(context.Background())
		}
	}
}

var detail = regexp.MustCompile(`^Resource "doc:(\d+)": presented token (\d+), current token (\d+)`)

// judge says how a transaction ended, and what is wrong with that. idle says that the
// session was between two transactions until then.
func (w *writer) judge(p plan, t tokens, err error, idle bool) (fate, string) {
	if err == nil {
		return committed, ""
	}
	var pgErr *pgconn.PgError
	switch isPg := errors.As(err, &pgErr); {
	case errors.Is(err, context.DeadlineExceeded):
		return faulty, "a transaction takes too long"
	case !isPg || pgErr.Code == "57P01":
		// Who is ended may have come to an end by itself just before.
		due := func(h held) bool { return h.mayBeEnded() || idle && h.mayHaveIdled() }
		recent := w.recent[p.way()]
		if !slices.ContainsFunc(recent[:min(4, len(recent))], due) && !metAgain(recent) {
			return ended, "a backend was ended that had been in nobody's way"
		}
		return ended, ""
	case pgErr.Code == "40001":
		// A guard's advance on use that had to wait is refused.
		if !p.mayConflict() && !strings.HasPrefix(pgErr.Detail, "The statement waited for former holders") {
			return conflict, "40001, which is not documented for this"
		}
		return conflict, ""
	case pgErr.Code == "55P03":
		return conflict, w.judgeGivingUp(t, pgErr)
	case fence.IsStale(err):
		return refused, w.judgeRefusal(t, pgErr.Detail)
	}
	return faulty, "an error that nobody should see"
}

// judgeRefusal wants a refusal to name the token presented, and a higher one that
// was recorded.
func (w *writer) judgeRefusal(t tokens, text string) string {
	m := detail.FindStringSubmatch(text)
	if m == nil {
		return "a refusal in other words"
	}
	id, _ := strconv.Atoi(m[1])
	presented, _ := strconv.ParseInt(m[2], 10, 64)
	current, _ := strconv.ParseInt(m[3], 10, 64)
	if t[w.resources[id]] != presented || presented >= current {
		return "a token that isn't stale was refused"
	}
	note(w.journal, w.journal.cited, recorded{id, current}, true)
	return ""
}

var (
	givenUp = regexp.MustCompile(`^could not take over resource "doc:(\d+)"$`)
	blocks  = regexp.MustCompile(`^It is held by process \d+ of role issuer(, process \d+ of role issuer)*, whose sessions role app may not end\.`)
)

// judgeGivingUp wants an advance on use to have given up for issuers alone: one that seals several
// tokens in a transaction keeps what it has sealed until it has all.
func (w *writer) judgeGivingUp(t tokens, err *pgconn.PgError) string {
	m := givenUp.FindStringSubmatch(err.Message)
	if m == nil || !blocks.MatchString(err.Detail) {
		return "55P03, which is not documented for this"
	}
	id, _ := strconv.Atoi(m[1])
	r := w.resources[id]
	if _, presented := t[r]; !presented || !r.byUse || r.preemptAfter == fence.Never {
		return "an advance gave up that has no reason to"
	}
	return ""
}

func describe(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return fmt.Sprintf("%s %s (%s; %s)", pgErr.Code, pgErr.Message, pgErr.Detail, pgErr.Where)
	}
	return fmt.Sprint(err)
}
