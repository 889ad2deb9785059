package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// StartStandby makes a hot standby of a running server by an online backup, and starts
// it. It follows the primary by streaming. pg_hba.conf must let the superuser replicate.
func (p *Postgres) StartStandby(ctx context.Context) (*Postgres, error) {
	return p.startStandby(ctx, p.Port)
}

// StartStandbyBy is StartStandby for one that follows the primary by a network that can fail.
func (p *Postgres) StartStandbyBy(ctx context.Context, l *Link) (*Postgres, error) {
	return p.startStandby(ctx, l.port())
}

func (p *Postgres) startStandby(ctx context.Context, port int) (*Postgres, error) {
	follow := fmt.Sprintf("primary_conninfo = 'host=127.0.0.1 port=%d user=postgres application_name=standby'\nrecovery_target_timeline = 'latest'\nwal_retrieve_retry_interval = '100 ms'\n", port)
	return p.startCopy(ctx, "standby.signal", follow, nil)
}

// Restore backs a running server up, calls behind, and starts another server from the
// backup, which lacks the commits of behind. It is recovered to its end, without an
// archive, and so gets a timeline of its own.
func (p *Postgres) Restore(ctx context.Context, behind func() error) (*Postgres, error) {
	s, err := p.startCopy(ctx, "recovery.signal", "restore_command = 'false'\nrecovery_target_timeline = 'current'\n", behind)
	if err != nil {
		return nil, err
	}
	return orClosed(s, s.awaitRecovered(ctx))
}

func (p *Postgres) awaitRecovered(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	_, err = conn.Exec(ctx, waitFor("NOT pg_is_in_recovery()"))
	return err
}

// startCopy copies a running server's data by an online backup, and starts the copy with
// a signal file and settings, once behind has returned.
func (p *Postgres) startCopy(ctx context.Context, signal, settings string, behind func() error) (*Postgres, error) {
	s := &Postgres{Major: p.Major, bin: p.bin, account: p.account}
	var err error
	if s.dir, err = os.MkdirTemp("", "wf-pg-"); err != nil {
		return nil, err
	}
	s.SocketDir = s.dir
	err = p.backUp(ctx, s)
	if err == nil && behind != nil {
		err = behind()
	}
	if err == nil {
		err = s.configure(signal, settings)
	}
	if err == nil {
		err = s.Start(ctx)
	}
	return orClosed(s, err)
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
	return s.write("backup_label", label, os.O_TRUNC)
}

// copyData copies those files that are wanted, by their names in the data directory.
// Files may come and go meanwhile.
func (p *Postgres) copyData(s *Postgres, wanted func(name string) bool) error {
	from := filepath.Join(p.dir, "data")
	if err := s.own(s.dir); err != nil {
		return err
	}
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
		to := filepath.Join(s.dir, "data", name)
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

func (p *Postgres) copyFile(from, to string) error {
	in, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if closing := out.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = p.own(to)
	}
	return err
}

// own gives a file or a folder to the account that the server runs as.
func (p *Postgres) own(path string) error {
	if p.account == nil {
		return nil
	}
	return os.Chown(path, int(p.account.Uid), int(p.account.Gid))
}

// write writes a file of the data directory, by O_TRUNC or O_APPEND.
func (p *Postgres) write(name, text string, flag int) error {
	path := filepath.Join(p.dir, "data", name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|flag, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = p.own(path)
	}
	return err
}

func (p *Postgres) configure(signal, settings string) (err error) {
	if p.Port, err = FreePort(); err != nil {
		return err
	}
	if err := p.write(signal, "", os.O_TRUNC); err != nil {
		return err
	}
	return p.write("postgresql.auto.conf", fmt.Sprintf("port = '%d'\nunix_socket_directories = '%s'\nhot_standby = on\n%s", p.Port, p.dir, settings), os.O_APPEND)
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
	admin, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return err
	}
	defer admin.Close(context.Background())
	for _, sql := range []string{
		waitFor(fmt.Sprintf("pg_last_wal_replay_lsn() >= '%s'", lsn)),
		"ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()",
		waitFor("NOT EXISTS (SELECT FROM pg_stat_wal_receiver)"),
	} {
		if _, err := admin.Exec(ctx, sql); err != nil {
			return fmt.Errorf("cutting a standby off: %s: %w", sql, err)
		}
	}
	return nil
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
	out, err := p.command(ctx, "pg_ctl", "promote", "--wait", "-D", filepath.Join(p.dir, "data")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("pg_ctl promote: %w\n%s", err, out)
	}
	return nil
}
