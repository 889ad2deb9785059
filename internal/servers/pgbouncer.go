package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// PgBouncer is a running PgBouncer in session mode before a PostgreSQL server.
// It trusts the user postgres.
type PgBouncer struct {
	Port int

	dir    string
	cmd    *exec.Cmd
	exited chan struct{}
}

// StartPgBouncer starts a PgBouncer that serves every database of the server to
// as many as clients connections. It returns when it answers.
func StartPgBouncer(ctx context.Context, pg *Postgres, clients int) (*PgBouncer, error) {
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		return nil, errors.New("no pgbouncer found: run scripts/install-servers --all (Debian, Ubuntu), or put pgbouncer on the PATH")
	}
	account, err := serverAccount() // PgBouncer refuses root too
	if err != nil {
		return nil, err
	}
	b := &PgBouncer{}
	if b.Port, err = FreePort(); err != nil {
		return nil, err
	}
	if b.dir, err = os.MkdirTemp("", "wf-pgb-"); err != nil {
		return nil, err
	}
	if err := b.start(ctx, path, account, pg, clients); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

func (b *PgBouncer) start(ctx context.Context, path string, account *syscall.Credential, pg *Postgres, clients int) error {
	users, config, logs := filepath.Join(b.dir, "users.txt"), filepath.Join(b.dir, "pgbouncer.ini"), filepath.Join(b.dir, "pgbouncer.log")
	settings := []string{
		"[databases]", fmt.Sprintf("* = host=127.0.0.1 port=%d", pg.Port),
		"[pgbouncer]", "listen_addr = 127.0.0.1", fmt.Sprintf("listen_port = %d", b.Port), "unix_socket_dir =",
		"auth_type = trust", "auth_file = " + users, "pool_mode = session",
		fmt.Sprintf("max_client_conn = %d", clients), fmt.Sprintf("default_pool_size = %d", clients),
		"ignore_startup_parameters = extra_float_digits,options", "logfile = " + logs,
		"log_connections = 0", "log_disconnections = 0", "stats_period = 3600",
	}
	if err := errors.Join(
		os.WriteFile(users, []byte("\"postgres\" \"\"\n"), 0o644),
		os.WriteFile(config, []byte(strings.Join(settings, "\n")+"\n"), 0o644),
	); err != nil {
		return err
	}
	if account != nil {
		if err := os.Chown(b.dir, int(account.Uid), int(account.Gid)); err != nil {
			return err
		}
	}
	cmd := exec.Command(path, "-q", config)
	cmd.Dir = b.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: account}
	endWithParent(cmd.SysProcAttr)
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	b.cmd, b.exited = cmd, exited
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		conn, err := pgconn.Connect(ctx, b.URL("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-exited:
			text, _ := os.ReadFile(logs)
			return fmt.Errorf("PgBouncer ended while starting:\n%s", text)
		case <-ctx.Done():
			return fmt.Errorf("PgBouncer did not start: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Pid is the process id.
func (b *PgBouncer) Pid() int { return b.cmd.Process.Pid }

// Addr is host:port of the process.
func (b *PgBouncer) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(b.Port)) }

// URL is the superuser's connection string to a database.
func (b *PgBouncer) URL(database string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", b.Addr(), database)
}

// Close ends the process and removes its folder. It may be called twice.
func (b *PgBouncer) Close() {
	if b.cmd != nil {
		_ = b.cmd.Process.Kill()
		<-b.exited
		b.cmd = nil
	}
	_ = os.RemoveAll(b.dir)
}
