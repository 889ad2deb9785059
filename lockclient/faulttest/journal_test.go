//go:build linux

package faulttest

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
)

// slot is the replication slot that reports the order of commits. It survives a crash of
// the server.
const slot = "journal"

var (
	decodedRow   = regexp.MustCompile(`^table public\.journal: INSERT: id\[text\]:'([^']*)' token\[bigint\]:(\d+)$`)
	decodedToken = regexp.MustCompile(`^table wirefence\.resource_locks: (?:INSERT|UPDATE): .*\blast_token\[bigint\]:(\d+) (?:.* )?holder\[text\]:(?:'([^']*)'|null)`)
)

// watchCommits begins to record commits.
func watchCommits(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "SELECT pg_create_logical_replication_slot($1 || current_database(), 'test_decoding')", slot)
	return err
}

// readCommits returns the commits since then, in order, and drops the slot.
func readCommits(ctx context.Context, conn *pgx.Conn) (all []commit, err error) {
	rows, err := conn.Query(ctx, "SELECT data FROM pg_logical_slot_get_changes($1 || current_database(), NULL, NULL, 'include-xids', '0')", slot)
	if err != nil {
		return nil, err
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	for _, line := range lines {
		row, token := decodedRow.FindStringSubmatch(line), decodedToken.FindStringSubmatch(line)
		switch {
		case row != nil:
			all = append(all, commit{row: row[1], token: parseToken(row[2])})
		case token != nil:
			by, _, _ := strings.Cut(token[2], "/")
			all = append(all, commit{token: parseToken(token[1]), by: by})
		case strings.HasPrefix(line, "table ") && !strings.HasPrefix(line, "table wirefence.history: "):
			return nil, fmt.Errorf("not understood: %s", line)
		}
	}
	_, err = conn.Exec(ctx, "SELECT pg_drop_replication_slot($1 || current_database())", slot)
	return all, err
}

// parseToken reads digits.
func parseToken(digits string) fence.Token {
	n, _ := strconv.ParseInt(digits, 10, 64)
	return fence.Token(n)
}
