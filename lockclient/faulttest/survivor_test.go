//go:build linux

package faulttest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
)

// A failover ends every slot of logical decoding, so what the survivor has committed is
// put together from three things that PostgreSQL itself tells:
//
//   - The order is that of the commit records in the survivor's own log, from where the
//     applications began: on each timeline up to the point where the next one branches
//     off. Logical decoding goes by the same order. The log is complete, since nothing of
//     it is ever removed, and a rewound server gets its source's.
//   - The transaction of a row is the row's xmin. Numbers of transactions that a failover
//     has lost are given out again, but those have neither rows nor records there.
//   - The token that a row was written with is what its session had presented last,
//     by wirefence.check or wirefence.hold: all statements are in the servers' logs. It
//     is 0 if there was none.
type survivor struct {
	commits   []commit
	timelines map[int]int // of each commit, by its place
}

// readSurvivor reads the data of the present primary. Nobody writes any more.
func (f *failover) readSurvivor(ctx context.Context) (*survivor, error) {
	order, err := f.readOrder(ctx)
	if err != nil {
		return nil, err
	}
	presented := map[string]fence.Token{}
	for _, m := range f.Members {
		readPresented(m.Log(), presented)
	}
	conn, err := pgx.Connect(ctx, f.primary.URL("postgres"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, `SELECT xmin::text, 0, timeline, id, 0, '' FROM journal
		UNION ALL SELECT xmin::text, n, timeline, '', token, coalesce(holder, '') FROM seals WHERE token > 1`)
	if err != nil {
		return nil, err
	}
	type row struct {
		Xid      string
		N        int64 // in the transaction: the first grant behind a promotion records two tokens
		Timeline int
		ID       string
		Token    fence.Token
		Holder   string
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		if _, ok := order[r.Xid]; !ok {
			return nil, fmt.Errorf("transaction %s, of %+v, has no commit record", r.Xid, r)
		}
	}
	slices.SortFunc(all, func(a, b row) int {
		return cmp.Or(order[a.Xid]-order[b.Xid], cmp.Compare(a.N, b.N))
	})
	s := &survivor{timelines: map[int]int{}}
	for i, r := range all {
		s.timelines[i] = r.Timeline
		if r.ID == "" {
			holder, _, _ := strings.Cut(r.Holder, "/")
			s.commits = append(s.commits, commit{token: r.Token, by: holder})
			continue
		}
		s.commits = append(s.commits, commit{row: r.ID, token: presented[r.ID]})
	}
	return s, nil
}

var (
	commitRecord = regexp.MustCompile(`tx: +(\d+), lsn: .* desc: COMMIT (.*)$`)
	subxacts     = regexp.MustCompile(`subxacts: ([\d ]+)`)
)

// readOrder returns the place of each transaction in the order of commits, its
// subtransactions' too.
func (f *failover) readOrder(ctx context.Context) (map[string]int, error) {
	conn, err := pgx.Connect(ctx, f.primary.URL("postgres"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	var timeline int
	var end string
	if err := conn.QueryRow(ctx, "SELECT "+timelineOf+", pg_current_wal_flush_lsn()::text").Scan(&timeline, &end); err != nil {
		return nil, err
	}
	wal := filepath.Join(f.primary.Data(), "pg_wal")
	branches, err := readBranches(filepath.Join(wal, fmt.Sprintf("%08X.history", timeline)))
	if err != nil {
		return nil, err
	}
	order := map[string]int{}
	from := f.began
	for _, b := range append(branches, branch{timeline, end}) {
		out, err := f.primary.Command(ctx, "pg_waldump", "-p", wal, "-r", "Transaction", "-t", strconv.Itoa(b.timeline), "-s", from, "-e", b.end).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("pg_waldump of timeline %d from %s to %s: %w\n%s", b.timeline, from, b.end, err, out)
		}
		for line := range strings.Lines(string(out)) {
			record := commitRecord.FindStringSubmatch(strings.TrimSpace(line))
			if record == nil {
				continue
			}
			n := len(order)
			order[record[1]] = n
			if subs := subxacts.FindStringSubmatch(record[2]); subs != nil {
				for _, xid := range strings.Fields(subs[1]) {
					order[xid] = n
				}
			}
		}
		from = b.end
	}
	return order, nil
}

// branch is a timeline in the history of the survivor, and its end.
type branch struct {
	timeline int
	end      string
}

// readBranches reads a timeline history file: the timelines before, and where they were
// left.
func readBranches(file string) (all []branch, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		timeline, err := strconv.Atoi(fields[0])
		if err != nil {
			return nil, fmt.Errorf("%s: %q", file, line)
		}
		all = append(all, branch{timeline, fields[1]})
	}
	return all, nil
}

var (
	logged   = regexp.MustCompile(`^\S+ \S+ UTC \[\d+\] ([0-9a-f]+\.[0-9a-f]+) (?:LOG:  (?:statement|execute [^:]*): |DETAIL:  parameters: )(.*)$`)
	shown    = regexp.MustCompile(`\b` + string(resource) + `=(\d+)\b`)
	givesUp  = regexp.MustCompile(`wirefence\.unhold\(`)
	inserted = regexp.MustCompile(`'([ab]\.\d+)'`)
)

// readPresented reads in a server's log which token its session presented last before
// each row, or in the same text.
func readPresented(log string, presented map[string]fence.Token) {
	last := map[string]fence.Token{} // by session
	for line := range strings.Lines(log) {
		m := logged.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		session, text := m[1], m[2]
		if givesUp.MatchString(text) {
			last[session] = 0
		}
		if token := shown.FindStringSubmatch(text); token != nil {
			last[session] = parseToken(token[1])
		}
		if id := inserted.FindStringSubmatch(text); id != nil {
			presented[id[1]] = last[session]
		}
	}
}
