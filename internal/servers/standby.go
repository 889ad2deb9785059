package servers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// StartStandby makes a hot standby of a running server by pg_basebackup, which
// the distribution's packages have, and starts it. It follows the primary by
// streaming. pg_hba.conf must let the superuser replicate.
func (p *Postgres) StartStandby(ctx context.Context) (*Postgres, error) {
	s := &Postgres{Major: p.Major, bin: p.bin, account: p.account}
	var err error
	if s.dir, err = os.MkdirTemp("", "wf-pg-"); err != nil {
		return nil, err
	}
	s.SocketDir = s.dir
	if err := s.follow(ctx, p); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (p *Postgres) follow(ctx context.Context, primary *Postgres) (err error) {
	if p.account != nil {
		if err := os.Chown(p.dir, int(p.account.Uid), int(p.account.Gid)); err != nil {
			return err
		}
	}
	data := filepath.Join(p.dir, "data")
	backup := p.command(ctx, "pg_basebackup", "-D", data, "-h", "127.0.0.1", "-p", strconv.Itoa(primary.Port), "-U", "postgres",
		"--checkpoint=fast", "--no-sync", "--write-recovery-conf")
	if out, err := backup.CombinedOutput(); err != nil {
		return fmt.Errorf("pg_basebackup: %w\n%s", err, out)
	}
	if p.Port, err = FreePort(); err != nil {
		return err
	}
	conf, err := os.OpenFile(filepath.Join(data, "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(conf, "port = '%d'\nunix_socket_directories = '%s'\n", p.Port, p.dir)
	if closing := conf.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return err
	}
	return p.Start(ctx)
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
