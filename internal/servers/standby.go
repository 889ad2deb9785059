package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// StartStandby makes a hot standby of a running server by an online backup, and starts
// it. It follows the primary by streaming, by a network that can fail if one is named.
// pg_hba.conf must let the superuser replicate.
func (p *Postgres) StartStandby(ctx context.Context, by ...*Link) (*Postgres, error) {
	port := p.Port
	for _, l := range by {
		port = l.port()
	}
	return p.startCopy(ctx, "standby.signal", fmt.Sprintf("primary_conninfo = 'host=127.0.0.1 port=%d user=postgres application_name=standby'\n"+
		"recovery_target_timeline = 'latest'\nwal_retrieve_retry_interval = '100 ms'\n", port), nil)
}

// Restore backs a running server up, calls behind, and starts another server from the
// backup, which lacks the commits of behind. It is recovered to its end, without an
// archive, and so gets a timeline of its own.
func (p *Postgres) Restore(ctx context.Context, behind func() error) (*Postgres, error) {
	s, err := p.startCopy(ctx, "recovery.signal", "restore_command = 'false'\nrecovery_target_timeline = 'current'\n", behind)
	if err != nil {
		return nil, err
	}
	return orClosed(s, s.Exec(ctx, "postgres", waitFor("NOT pg_is_in_recovery()")))
}

// startCopy copies a running server's data by an online backup, and starts the copy with
// a signal file and settings, once behind has returned.
func (p *Postgres) startCopy(ctx context.Context, signal, settings string, behind func() error) (*Postgres, error) {
	return startPostgres(ctx, p.Major, p.bin, func(s *Postgres) error {
		err := p.backUp(ctx, s)
		if err == nil && behind != nil {
			err = behind()
		}
		if err != nil {
			return err
		}
		own := fmt.Sprintf("port = '%d'\nunix_socket_directories = '%s'\nhot_standby = on\n%s", s.Port, s.dir, settings)
		return cmp.Or(s.write(s.File(signal), strings.NewReader(""), os.O_TRUNC), s.write(s.File("postgresql.auto.conf"), strings.NewReader(own), os.O_APPEND))
	})
}

// backUp copies the data of a running server as the manual has it in "Making a Base
// Backup Using the Low Level API". PostgreSQL's own tool isn't everywhere.
func (p *Postgres) backUp(ctx context.Context, s *Postgres) error {
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	start, stop := "SELECT pg_backup_start('copy', true)", "SELECT labelfile FROM pg_backup_stop(false)"
	if p.Major < 15 {
		start, stop = "SELECT pg_start_backup('copy', true, false)", "SELECT labelfile FROM pg_stop_backup(false, false)"
	}
	if _, err := conn.Exec(ctx, start); err != nil {
		return err
	}
	if err := p.copyData(s, func(name string) bool { return !strings.HasPrefix(name, "pg_wal/") }); err != nil {
		return err
	}
	var label string
	if err := conn.QueryRow(ctx, stop).Scan(&label); err != nil {
		return err
	}
	if err := p.copyData(s, func(name string) bool { return strings.HasPrefix(name, "pg_wal/") }); err != nil {
		return err
	}
	return s.write(s.File("backup_label"), strings.NewReader(label), os.O_TRUNC)
}

// copyData copies those files that are wanted, by their names in the data directory.
// Files may come and go meanwhile.
func (p *Postgres) copyData(s *Postgres, wanted func(name string) bool) error {
	from := p.data()
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		to := s.File(name)
		if entry.IsDir() {
			if err := os.Mkdir(to, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			return s.own(to)
		}
		if !entry.Type().IsRegular() || strings.HasPrefix(name, "postmaster.") || !wanted(name) {
			return nil
		}
		return s.copyFile(path, to)
	})
}

// FallBehind lets a standby replay what its primary has committed, and no more from then
// on.
func (p *Postgres) FallBehind(ctx context.Context, primary *Postgres) error {
	conn, err := pgx.Connect(ctx, primary.URL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	var lsn string
	if err := conn.QueryRow(ctx, "SELECT pg_current_wal_flush_lsn()::text").Scan(&lsn); err != nil {
		return err
	}
	return p.Exec(ctx, "postgres", waitFor(fmt.Sprintf("pg_last_wal_replay_lsn() >= '%s'", lsn)),
		"ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()", waitFor("NOT EXISTS (SELECT FROM pg_stat_wal_receiver)"))
}

// waitFor is SQL that waits for a condition.
func waitFor(condition string) string {
	return fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..3000 LOOP
		IF %s THEN RETURN; END IF;
		PERFORM pg_sleep(0.01);
	END LOOP; RAISE 'not so within 30 s'; END $$`, condition)
}

// Promote makes a standby the primary, and returns when it is.
func (p *Postgres) Promote(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return p.tool(ctx, "pg_ctl", "promote", "--wait", "-D", p.data())
}
