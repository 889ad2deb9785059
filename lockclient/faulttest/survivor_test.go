//go:build linux

package faulttest

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/model"
)

// A failover ends every slot of logical decoding, so what the survivor has committed, and the
// steps before it, are put together from two things that PostgreSQL itself tells:
//
//   - The order is that of the records in the survivor's own log, from where the
//     applications began: on each timeline up to the point where the next one branches
//     off. Logical decoding goes by the same order. The log is complete, since nothing of
//     it is ever removed, and a rewound server gets its source's.
//   - The transaction of a row is the row's xmin. Numbers of transactions that a failover
//     has lost are given out again, but those have neither rows nor records there.
//
// The applications know no tokens. A row counts as written under the last one that was recorded
// before it, and the model's steps tell whether a check or a hold of its session for that one
// covers it.
type survivor struct {
	commits  []commit
	cannotBe error
}

// readSurvivor reads the data of the present primary. Nobody writes any more.
func (f *failover) readSurvivor(ctx context.Context) (*survivor, error) {
	conn, err := pgx.Connect(ctx, f.primary.URL("postgres"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	records, err := f.readLog(ctx, conn)
	if err != nil {
		return nil, err
	}
	rows, err := conn.Query(ctx, `SELECT xmin::text, 0, id, 0, '' FROM journal
		UNION ALL SELECT xmin::text, n, '', token, coalesce(holder, '') FROM seals WHERE token > 1`)
	if err != nil {
		return nil, err
	}
	type row struct {
		Xid    string
		N      int64 // in the transaction: the first grant behind a promotion records two tokens
		ID     string
		Token  fence.Token
		Holder string
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b row) int { return cmp.Compare(a.N, b.N) })
	of := map[string][]row{}
	for _, r := range all {
		of[r.Xid] = append(of[r.Xid], r)
	}
	s, last := &survivor{}, fence.Token(1)
	take := func(r logRecord) error {
		switch {
		case r.promoted:
			return f.steps.Promote(r.at)
		case r.told != "":
			return f.steps.Told(r.told)
		}
		var steps []model.Step
		for _, xid := range r.xids {
			for _, row := range of[xid] {
				step := model.Step{Kind: model.Commits, Resource: string(resource)}
				if row.ID == "" {
					row.Holder, _, _ = strings.Cut(row.Holder, "/")
					step, last = model.Step{Kind: model.Sealed, Actor: row.Holder, Resource: string(resource), Token: int64(row.Token)}, row.Token
				}
				steps = append(steps, step)
				s.commits = append(s.commits, commit{row: row.ID, token: last, by: row.Holder})
			}
			delete(of, xid)
		}
		xid, err := strconv.ParseUint(r.xids[0], 10, 64)
		if err != nil {
			return err
		}
		return f.steps.Commit(r.at, xid, steps)
	}
	for _, r := range records {
		if err := take(r); err != nil && s.cannotBe == nil {
			s.cannotBe = err
		}
	}
	for xid, rows := range of {
		return nil, fmt.Errorf("transaction %s, of %+v, has no commit record", xid, rows)
	}
	return s, nil
}

// logRecord is a step that was told, a commit, or a promotion, in the log.
type logRecord struct {
	at       string
	told     string
	xids     []string // of the transaction and its subtransactions
	promoted bool
}

var (
	commitRecord = regexp.MustCompile(`tx: +(\d+), lsn: ([^,]+), .* desc: COMMIT (.*)$`)
	toldRecord   = regexp.MustCompile(`lsn: ([^,]+), .* desc: MESSAGE non-transactional, prefix "step"; payload \(\d+ bytes\): ([0-9A-F ]+)$`)
	subxacts     = regexp.MustCompile(`subxacts: ([\d ]+)`)
)

// readLog reads the survivor's log.
func (f *failover) readLog(ctx context.Context, conn *pgx.Conn) (all []logRecord, err error) {
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
	from := f.began
	for _, b := range append(branches, branch{timeline, end}) {
		// Without names of files it looks at any, which may be one that is only prepared.
		var first, last string
		if err := conn.QueryRow(ctx, "SELECT substring(pg_walfile_name($1::pg_lsn + 1) FROM 9), substring(pg_walfile_name($2) FROM 9)", from, b.end).Scan(&first, &last); err != nil {
			return nil, err
		}
		out, err := f.primary.Command(ctx, "pg_waldump", "-p", wal, "-r", "Transaction", "-r", "LogicalMessage", "-s", from, "-e", b.end,
			fmt.Sprintf("%08X%s", b.timeline, first), fmt.Sprintf("%08X%s", b.timeline, last)).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("pg_waldump of timeline %d from %s to %s: %w\n%s", b.timeline, from, b.end, err, out)
		}
		for line := range strings.Lines(string(out)) {
			line = strings.TrimSpace(line)
			if m := toldRecord.FindStringSubmatch(line); m != nil {
				text, err := hex.DecodeString(strings.ReplaceAll(m[2], " ", ""))
				if err != nil {
					return nil, err
				}
				all = append(all, logRecord{at: m[1], told: string(text)})
			} else if m := commitRecord.FindStringSubmatch(line); m != nil {
				r := logRecord{at: m[2], xids: []string{m[1]}}
				if subs := subxacts.FindStringSubmatch(m[3]); subs != nil {
					r.xids = append(r.xids, strings.Fields(subs[1])...)
				}
				all = append(all, r)
			}
		}
		if b.timeline != timeline {
			all = append(all, logRecord{at: b.end, promoted: true})
		}
		from = b.end
	}
	return all, nil
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
