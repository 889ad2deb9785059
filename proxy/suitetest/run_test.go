package suitetest

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// binaries is where Debian's packages of PostgreSQL 15 are.
const binaries = "/usr/lib/postgresql/15"

// source is the folder of a suite that scripts/install-servers has fetched.
func source(name ...string) string {
	return filepath.Join(append([]string{servers.CacheDir(), "suites"}, name...)...)
}

// command is one that reaches the server by the variables that libpq reads, and drivers like it.
func (w *way) command(t *testing.T, folder, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "PGHOST=127.0.0.1", "PGPORT="+w.port, "PGUSER=postgres", "PGDATABASE="+database)
	if w.root != "" {
		cmd.Env = append(cmd.Env, "PGSSLMODE=verify-ca", "PGSSLROOTCERT="+w.root, "NODE_EXTRA_CA_CERTS="+w.root)
	}
	return cmd
}

// regress runs PostgreSQL's regression tests one after another.
func regress(t *testing.T, w *way) map[string]string {
	source := source("postgresql", "src", "test", "regress")
	out := folder(t)
	compile := exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", "-I/usr/include/postgresql/15/server", "-I"+source, "-o", filepath.Join(out, "regress.so"), filepath.Join(source, "regress.c"))
	if text, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s: run scripts/install-servers --suites", err, text)
	}
	for _, library := range []string{"refint.so", "autoinc.so"} {
		if err := os.Symlink(filepath.Join(binaries, "lib", library), filepath.Join(out, library)); err != nil {
			t.Fatal(err)
		}
	}
	return pgRegress(t, w, out, "regress/pg_regress", "--inputdir="+source, "--dlpath="+out, "--schedule="+filepath.Join(source, "parallel_schedule"), "--max-connections=1")
}

// isolation runs PostgreSQL's tests of isolation.
func isolation(t *testing.T, w *way) map[string]string {
	source := source("postgresql", "src", "test", "isolation")
	return pgRegress(t, w, folder(t), "isolation/pg_isolation_regress", "--inputdir="+source, "--schedule="+filepath.Join(source, "isolation_schedule"))
}

// folder is one that the server may write to.
func folder(t *testing.T) string {
	t.Helper()
	out := t.TempDir()
	for _, name := range []string{".", "results", "testtablespace"} {
		path := filepath.Join(out, name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Dir(out), 0o755); err != nil {
		t.Fatal(err)
	}
	return out
}

// pgRegress returns what each test has printed. The tests are compared with a direct run's, and
// not with what the suite expects of some version of server and psql.
func pgRegress(t *testing.T, w *way, out, program string, args ...string) map[string]string {
	t.Helper()
	cmd := w.command(t, out, filepath.Join(binaries, "lib/pgxs/src/test", program), append([]string{
		"--use-existing", "--host=127.0.0.1", "--port=" + w.port, "--user=postgres", "--dbname=" + database, "--outputdir=" + out, "--bindir=" + filepath.Join(binaries, "bin"),
	}, args...)...)
	text, err := cmd.CombinedOutput()
	files, _ := filepath.Glob(filepath.Join(out, "results", "*.out"))
	if len(files) == 0 {
		t.Fatalf("%v: %s", err, text)
	}
	all := map[string]string{}
	for _, file := range files {
		result, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".out")] = strings.ReplaceAll(temporary.ReplaceAllString(string(result), "pg_temp_N"), out, "OUT")
	}
	return all
}

// temporary is a session's schema, whose number is that of its server process' place.
var temporary = regexp.MustCompile(`\bpg_temp_\d+`)

// moduleDir is the folder of a module that go.mod requires.
func moduleDir(t *testing.T, module string) string {
	t.Helper()
	download, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module).Output()
	var found struct{ Dir string }
	if err := errors.Join(err, json.Unmarshal(download, &found)); err != nil || found.Dir == "" {
		t.Fatalf("%s can't be had: %v\n%s", module, err, download)
	}
	return found.Dir
}

// goTests runs the tests of a module that go.mod requires.
func goTests(module string, env func(*way) []string) func(*testing.T, *way) map[string]string {
	return func(t *testing.T, w *way) map[string]string {
		cmd := w.command(t, moduleDir(t, module), "go", "test", "-mod=mod", "-count=1", "-p=1", "-parallel=1", "-json", "./...")
		cmd.Env = append(cmd.Env, env(w)...)
		text, _ := cmd.Output()
		keep(t, text)
		all := map[string]string{}
		for line := range strings.Lines(string(text)) {
			var event struct{ Action, Package, Test string }
			if json.Unmarshal([]byte(line), &event) == nil && event.Test != "" && !strings.Contains(event.Test, os.TempDir()) && slices.Contains([]string{"pass", "fail", "skip"}, event.Action) {
				all[strings.TrimLeft(strings.TrimPrefix(event.Package, module)+" "+event.Test, "/ ")] = event.Action
			}
		}
		return all
	}
}

// keep keeps what a suite has said, where go test has been told to.
func keep(t *testing.T, text []byte) {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(t.ArtifactDir(), "output"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.Write(text)
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
}

// pgx and pq are what these drivers' tests want to know besides.
func pgx(w *way) []string {
	dsn := fmt.Sprintf("host=127.0.0.1 port=%s user=postgres database=%s", w.port, database)
	if w.root != "" {
		dsn += " sslmode=verify-ca sslrootcert=" + w.root
	}
	env := []string{"PGX_TEST_DATABASE=" + dsn, "PGSSLMODE=", "PGSSLROOTCERT="} // its fake servers have no TLS
	if w.token == stale {
		// They wait for ever for what is refused.
		env = append(env, "GOFLAGS=-skip=^(TestListenNotifyWhileBusyIsSafe|TestConnReleaseClosesBusyConn|TestPoolSendBatchBeginTxCloseAgainAfterCommit)$")
	}
	return env
}

func pq(w *way) []string {
	env := []string{"PGHOST=localhost", "PGUSER=pqgo", "PGDATABASE=" + second}
	if w.root != "" { // it never ends where the environment asks for TLS
		env = append(env, "GOFLAGS=-skip=^TestConnectionTargetSessionAttrs$")
	}
	return env
}

// sayingFirst is the address of a server whose sessions first send these texts: a client gets the
// end of its login behind the last one's answer. It refuses TLS.
func sayingFirst(t *testing.T, server string, texts []string) (addr string) {
	return stack.Scripted(t, func(client net.Conn) {
		up, err := net.Dial("tcp", server)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = up.Close() }()
		const sslRequest, gssRequest = 80877103, 80877104
		first := make([]byte, 8)
		for asks := true; asks; {
			if _, err := io.ReadFull(client, first); err != nil {
				return
			}
			if asks = slices.Contains([]uint32{sslRequest, gssRequest}, binary.BigEndian.Uint32(first[4:])); asks {
				_, _ = client.Write([]byte{'N'})
			}
		}
		_, _ = up.Write(first)
		go func() {
			_, _ = io.Copy(up, client)
			_ = up.Close()
		}()
		for left, head := texts, make([]byte, 5); ; {
			if _, err := io.ReadFull(up, head); err != nil {
				return
			}
			msg := slices.Concat(head, make([]byte, binary.BigEndian.Uint32(head[1:])-4))
			if _, err := io.ReadFull(up, msg[5:]); err != nil {
				return
			}
			ready := msg[0] == 'Z'
			switch {
			case ready && len(left) == 0:
				_, _ = client.Write(msg)
				_, _ = io.Copy(client, up)
				return
			case ready:
				text, err := (&pgproto3.Query{String: left[0]}).Encode(nil)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = up.Write(text)
				left = left[1:]
			case len(left) == len(texts): // the login's own
				_, _ = client.Write(msg)
			}
		}
	})
}
