package servers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/jackc/pgx/v5"
)

// Patroni is two PostgreSQL servers under Patroni, which follow each other
// asynchronously, and the etcd server by which Patroni elects the primary.
type Patroni struct {
	Members [2]*PatroniMember

	etcd     *Etcd
	watchdog *exec.Cmd
	leash    io.Closer
}

// PatroniMember is one of the servers, with its Patroni. Kill, Freeze and Start
// concern both, as the loss of a machine does: Patroni starts PostgreSQL, after a backup or a
// rewind where it needs one. Start returns when Patroni answers.
type PatroniMember struct {
	process           // Patroni
	Name       string // in the cluster
	Postgres   int    // port of the server, on the loopback
	Replicated *Link  // the way by which the other member reads this one's log

	bin string
}

// patroniTTL is how long Patroni takes a silent primary for alive. Patroni 3.1 and later
// takes at least 20 s, older ones what they are told. It must be above the pause between
// two of its looks and twice its retries of them, 1 s and 3 s here.
const patroniTTL = 10 * time.Second

// StartPatroni starts all servers and returns when one leads and the other follows.
// Commits are in the log before they are acknowledged, and no part of the log is removed.
// Its segments have 1 MB.
func StartPatroni(ctx context.Context) (*Patroni, error) {
	bins := postgresBinaries()
	bin := bins[defaultMajor(bins)] // the distribution's, which is Debian 12's 15
	if _, err := os.Stat(filepath.Join(bin, "pg_rewind")); err != nil {
		return nil, errors.New("no PostgreSQL with pg_rewind found: run scripts/install-servers (Debian, Ubuntu), or put all of its programs on the PATH")
	}
	p := &Patroni{}
	return orClosed(p, p.start(ctx, bin))
}

func (p *Patroni) start(ctx context.Context, bin string) (err error) {
	if p.etcd, err = StartEtcd(ctx); err != nil {
		return err
	}
	for i, name := range []string{"one", "two"} {
		if p.Members[i], err = newPatroniMember(name, bin); err != nil {
			return err
		}
	}
	if err := p.watch(); err != nil {
		return err
	}
	for _, m := range p.Members { // the first one becomes the primary
		if err := m.configure(p.etcd); err != nil {
			return err
		}
		if err := m.Start(ctx); err != nil {
			return err
		}
		if m == p.Members[0] {
			if err := m.AwaitPrimary(ctx); err != nil {
				return fmt.Errorf("%w\n%s", err, m.Log())
			}
		}
	}
	return p.AwaitReplication(ctx, p.Members[0])
}

func newPatroniMember(name, bin string) (*PatroniMember, error) {
	m := &PatroniMember{Name: name, bin: bin}
	err := m.prepareUnprivileged("patroni", &m.Postgres)
	if err == nil {
		m.command = append(m.command, m.file("patroni.yml"))
		m.env = []string{"LC_ALL=C.UTF-8", "TZ=UTC", "HOME=" + m.dir}
		m.ready = func(ctx context.Context) error { return answersOK(ctx, "http://"+m.Addr()+"/liveness") }
		m.Replicated, err = StartLink(m.Server())
	}
	return orClosed(m, err)
}

// Both members get the same users and the same settings; where they meet are the
// addresses in etcd. The log isn't truncated at restarts, so that a survivor has all of
// it. initdb alone says how large segments are.
var patroniConfig = template.Must(template.New("patroni.yml").Parse(`
scope: wirefence
name: {{.Name}}
restapi: {listen: '{{.Addr}}', connect_address: '{{.Addr}}'}
etcd3: {host: '{{.Etcd}}'}
bootstrap:
  dcs:
    ttl: {{.TTL}}
    loop_wait: 1
    retry_timeout: 3
    postgresql:
      use_pg_rewind: true
      parameters: {wal_keep_size: 4GB, max_wal_senders: 10, max_connections: 200, max_prepared_transactions: 10}
  initdb: [{encoding: UTF8}, {locale: C}, {auth: trust}, {wal-segsize: '1'}, no-sync]
postgresql:
  listen: '{{.Server}}'
  connect_address: '{{.Replicated.Addr}}'
  data_dir: {{.Data}}
  bin_dir: {{.Bin}}
  pgpass: {{.Data}}.pgpass
  authentication:
    superuser: {username: postgres}
    replication: {username: replicator}
  parameters:
    unix_socket_directories: {{.Dir}}
    fsync: 'off'
    shared_buffers: 32MB
    autovacuum: 'off'
    log_line_prefix: '%m [%p] %c '
`))

func (m *PatroniMember) configure(etcd *Etcd) error {
	var text bytes.Buffer
	if err := patroniConfig.Execute(&text, struct {
		*PatroniMember
		Etcd, Data, Bin, Dir string
		TTL                  int
	}{m, etcd.Addr(), m.data(), m.bin, m.dir, int(patroniTTL.Seconds())}); err != nil {
		return err
	}
	return os.WriteFile(m.file("patroni.yml"), text.Bytes(), 0o644)
}

func (m *PatroniMember) ask(ctx context.Context, method, path, body string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+m.Addr()+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// Server is host:port of the member's PostgreSQL.
func (m *PatroniMember) Server() string { return "127.0.0.1:" + strconv.Itoa(m.Postgres) }

// URL is the superuser's connection string to a database of the member.
func (m *PatroniMember) URL(database string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable&connect_timeout=2", m.Server(), database)
}

// Data is the data directory.
func (m *PatroniMember) Data() string { return m.data() }

// Command is a program of the member's version of PostgreSQL, run as the server's account.
func (m *PatroniMember) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return m.program(ctx, filepath.Join(m.bin, name), args...)
}

// AwaitPrimary returns when the member's server accepts writes.
func (m *PatroniMember) AwaitPrimary(ctx context.Context) error {
	return m.awaitSQL(ctx, "a promotion", "SELECT NOT pg_is_in_recovery()")
}

// AwaitReplication returns when the other member follows the primary on its timeline and
// could take its place, by Patroni's account and by PostgreSQL's.
func (p *Patroni) AwaitReplication(ctx context.Context, primary *PatroniMember) error {
	standby := p.Other(primary)
	err := await(ctx, "Patroni to have "+standby.Name+" follow", primary.isFollowed)
	if err == nil {
		err = primary.awaitSQL(ctx, "replication", "SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming' AND replay_lsn >= pg_current_wal_flush_lsn() - 65536")
	}
	if err == nil {
		err = standby.awaitSQL(ctx, "replication", "SELECT count(*) = 1 FROM pg_stat_wal_receiver WHERE status = 'streaming'")
	}
	return err
}

// isFollowed asks a primary's Patroni, which knows of the other member what that has told
// to etcd.
func (m *PatroniMember) isFollowed(ctx context.Context) bool {
	_, text, err := m.ask(ctx, http.MethodGet, "/cluster", "")
	var cluster struct {
		Members []struct {
			Role, State string
			Timeline    int
			Lag         any // a number, or a word
		}
	}
	if err != nil || json.Unmarshal([]byte(text), &cluster) != nil || len(cluster.Members) != 2 {
		return false
	}
	leaders := 0
	for _, member := range cluster.Members {
		lag, _ := member.Lag.(float64)
		if member.State != "running" && member.State != "streaming" || member.Timeline != cluster.Members[0].Timeline || lag > 65536 {
			return false
		}
		if member.Role == "leader" {
			leaders++
		}
	}
	return leaders == 1
}

func (m *PatroniMember) awaitSQL(ctx context.Context, what, sql string) error {
	return await(ctx, what+" of "+m.Name, func(ctx context.Context) (holds bool) {
		conn, err := pgx.Connect(ctx, m.URL("postgres"))
		if err != nil {
			return false
		}
		defer conn.Close(context.Background())
		return conn.QueryRow(ctx, sql).Scan(&holds) == nil && holds
	})
}

// Electing is host:port of the etcd server in which the members elect the primary.
func (p *Patroni) Electing() string { return p.etcd.Addr() }

// Other is the other member.
func (p *Patroni) Other(m *PatroniMember) *PatroniMember {
	if m == p.Members[0] {
		return p.Members[1]
	}
	return p.Members[0]
}

// Switchover asks the primary to change places with the other member, and returns when
// Patroni says that it is done.
func (p *Patroni) Switchover(ctx context.Context, primary *PatroniMember) error {
	body := fmt.Sprintf(`{"leader": %q, "candidate": %q}`, primary.Name, p.Other(primary).Name)
	status, text, err := primary.ask(ctx, http.MethodPost, "/switchover", body)
	if err != nil || status != http.StatusOK {
		return fmt.Errorf("switchover: status %d: %s: %w", status, text, err)
	}
	return nil
}
