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
	"github.com/wirefence/wirefence/internal/stack"
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

// readCommits reads the commits since then, in order, walks the steps between them, and drops the
// slot.
func (h *history) readCommits(ctx context.Context, conn *pgx.Conn, steps *stack.Steps) error {
	rows, err := conn.Query(ctx, "SELECT lsn::text, data FROM pg_logical_slot_get_changes($1 || current_database(), NULL, NULL)", slot)
	if err != nil {
		return err
	}
	var at, line string
	if _, err := pgx.ForEachRow(rows, []any{&at, &line}, func() error {
		if steps != nil && h.cannotBe == nil {
			h.cannotBe = steps.Read(at, line)
		}
		row, token := decodedRow.FindStringSubmatch(line), decodedToken.FindStringSubmatch(line)
		switch {
		case row != nil:
			h.commits = append(h.commits, commit{row: row[1], token: parseToken(row[2])})
		case token != nil:
			by, _, _ := strings.Cut(token[2], "/")
			h.commits = append(h.commits, commit{token: parseToken(token[1]), by: by})
		case strings.HasPrefix(line, "table ") && !strings.HasPrefix(line, "table wirefence.history: "):
			return fmt.Errorf("not understood: %s", line)
		}
		return nil
	}); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "SELECT pg_drop_replication_slot($1 || current_database())", slot)
	return err
}

// parseToken reads digits.
func parseToken(digits string) fence.Token {
	n, _ := strconv.ParseInt(digits, 10, 64)
	return fence.Token(n)
}
