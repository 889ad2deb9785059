package securitytest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/internal/connstring"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// psqlOf runs psql with the libpq of a major version of PostgreSQL.
func psqlOf(t *testing.T, major int, conninfo, sql string) (answer string, ok bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "psql", "-XAtqw", "-c", sql, conninfo)
	cmd.Env = append(os.Environ(), "PGPASSFILE=/nonexistent", "HOME=/nonexistent")
	if lib := filepath.Join(servers.CacheDir(), "postgres", fmt.Sprint(major), "native", "lib"); major != servers.DefaultVersion() {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+lib)
	}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err == nil
}

// A connection string does what it does for psql, or is refused as there.
func TestConnectionStringsAreReadAsByLibpq(t *testing.T) {
	stack.NeedsMore(t, "4 s of CPU")
	stack.OnEach(t, stack.OldAndNew, func(t *testing.T, major int) {
		w := start(t, major)
		const who = "SELECT current_user || ' ' || current_database() || ' ' || current_setting('application_name') || ' ' || (inet_server_addr() IS NULL)::text"
		root := w.ca.CAFile
		for _, c := range []struct {
			text  string
			since int // the version of libpq that knows it
		}{
			{text: "postgres://alice:open%20sesame@HOST:PORT/postgres"},
			{text: "postgresql://alice:open%20sesame@HOST:PORT/postgres?application_name=a+b"},
			{text: "postgres://alice@HOST:PORT/postgres?password=open%20sesame&application_name=a%26b"},
			{text: "postgres://alice:open%20sesame@HOST:PORT/?dbname=postgres&ssl=true"},
			{text: "postgres://alice:open%20sesame@/postgres?host=HOST&port=PORT"},
			{text: "postgres://alice:open%20sesame@[::1]:1,HOST:PORT/postgres"},
			{text: "postgres://alice:open%20sesame@nowhere.invalid:1,HOST:PORT/postgres?connect_timeout=2"},
			{text: "postgres://postgres@SOCKET:PORT/postgres"},
			{text: "postgres://postgres@SOCKET/postgres?port=PORT"},
			{text: "postgres://postgres@HOST:PORT"},
			{text: "user=alice password='open sesame' host=HOST port=PORT dbname=postgres"},
			{text: "user = alice password = open\\ sesame host=HOST\tport=PORT\ndbname=postgres application_name='it\\'s'"},
			{text: "user=alice password='open sesame'host=HOST port=PORT dbname=postgres"},
			{text: "user=postgres user=alice password='open sesame' host=HOST port=PORT dbname=postgres"},
			{text: "BASE host=db.test hostaddr=127.0.0.1 sslmode=verify-full sslrootcert=ROOT"},
			{text: "BASE hostaddr=127.0.0.1 host=db.test,db.test"},
			{text: "BASE hostaddr=db.test"},
			{text: "BASE gssencmode=disable"},
			{text: "BASE gssencmode=prefer"},
			{text: "BASE gssencmode=perhaps"},
			{text: "BASE keepalives=1 keepalives_idle=10 keepalives_interval=5 keepalives_count=3 tcp_user_timeout=3000"},
			{text: "BASE keepalives=0"},
			{text: "BASE keepalives_idle=soon"},
			{text: "BASE connect_timeout=-1"},
			{text: "BASE connect_timeout=soon"},
			{text: "BASE client_encoding=auto"},
			{text: "BASE client_encoding=latin1"},
			{text: "BASE fallback_application_name=mine application_name=other"}, // psql has its own fallback
			{text: "BASE sslcompression=0 sslsni=0"},
			{text: "BASE ssl_min_protocol_version=TLSv1.3"},
			{text: "BASE ssl_min_protocol_version=tlsv1.2 ssl_max_protocol_version=TLSv1.2"},
			{text: "BASE ssl_min_protocol_version=TLSv1.3 ssl_max_protocol_version=TLSv1.2"},
			{text: "BASE ssl_min_protocol_version=SSLv3"},
			{text: "BASE channel_binding=require sslmode=require"},
			{text: "BASE channel_binding=require sslmode=disable"},
			{text: "BASE channel_binding=perhaps"},
			{text: "BASE krbsrvname=pg gsslib=gssapi"},
			{text: "BASE target_session_attrs=primary"},
			{text: "BASE target_session_attrs=standby"},
			{text: "BASE target_session_attrs=leader"},
			{text: "BASE options='-c search_path=other -c geqo=off'"},
			{text: "BASE options='-c nonsense=1'"},
			{text: "BASE sslmode=verify-full"},
			{text: "BASE sslmode=verify-ca sslrootcert=ROOT"},
			{text: "BASE sslmode=often"},
			{text: "BASE passfile=/nonexistent"},
			{text: "BASE port=PORT,PORT"},
			{text: "BASE port=70000"},
			{text: "BASE service=nowhere"},
			{text: "BASE load_balance_hosts=random", since: 16},
			{text: "BASE load_balance_hosts=often", since: 16},
			{text: "BASE require_auth=scram-sha-256", since: 16},
			{text: "BASE require_auth=!scram-sha-256", since: 16},
			{text: "BASE require_auth=guess", since: 16},
			{text: "BASE sslcertmode=disable", since: 16},
			{text: "BASE gssdelegation=0", since: 17},
			{text: "BASE sslrootcert=system sslmode=require", since: 16},
			{text: "BASE sslnegotiation=direct sslmode=require", since: 17},
			{text: "BASE sslnegotiation=direct sslmode=prefer", since: 17},
			{text: "BASE min_protocol_version=3.0 max_protocol_version=3.2", since: 18},
			{text: "BASE min_protocol_version=3.1", since: 18},
			// None of these is one.
			{text: "postgresql+psycopg2://alice:open%20sesame@HOST:PORT/postgres?sslmode=prefer"},
			{text: "POSTGRES://alice:open%20sesame@HOST:PORT/postgres?sslmode=prefer"},
			{text: " postgres://alice:open%20sesame@HOST:PORT/postgres?sslmode=prefer"},
			{text: "jdbc:postgresql://HOST:PORT/postgres?user=alice"},
			{text: "Host=HOST;Port=PORT;Username=alice;Password=open sesame;Database=postgres"},
			{text: "BASE pool_max_conns=3"},
			{text: "BASE search_path=other"},
			{text: "BASE servicefile=/nonexistent"},
			{text: "BASE sslmode"},
			{text: "BASE password='open sesame"},
			{text: "postgres://alice:open%zzsesame@HOST:PORT/postgres"},
			{text: "postgres://alice@HOST:PORT/postgres?a=b=c"},
			{text: "postgres://alice@HOST:PORT/postgres?nothing"},
			{text: "postgres://alice@HOST:PORT/postgres?uesr=alice"},
			{text: "postgres://alice@[::1/postgres"},
			{text: "postgres://alice@[]/postgres"},
		} {
			if c.since > major || c.since > 0 && stack.Version(major) == servers.DefaultVersion() {
				continue // make more runs it with a libpq that knows it
			}
			text := strings.NewReplacer("BASE", "user=alice password='open sesame' host=127.0.0.1 port=PORT dbname=postgres", "ROOT", root).Replace(c.text)
			text = strings.NewReplacer("HOST", "127.0.0.1", "PORT", fmt.Sprint(w.Port), "SOCKET", strings.ReplaceAll(w.SocketDir, "/", "%2F")).Replace(text)
			want, taken := psqlOf(t, stack.Version(major), text, who)
			got, err := "", error(nil)
			cfg, err := connstring.Conn(text)
			if err == nil {
				var conn *pgx.Conn
				if conn, err = pgx.ConnectConfig(t.Context(), cfg); err == nil {
					err = conn.QueryRow(t.Context(), who).Scan(&got)
					_ = conn.Close(t.Context())
				}
			}
			if cfg != nil && cfg.RuntimeParams["application_name"] == "" && taken {
				want = strings.Replace(want, " psql ", "  ", 1)
			}
			if (err == nil) != taken || taken && got != want {
				t.Errorf("%s:\n  here %q, %v\n  psql %q", c.text, got, err, want)
			}
		}
	})
}

// A pool takes the password for each new connection from its file: those of managed services expire.
func TestPasswordFilesAreReadForEachConnection(t *testing.T) {
	t.Parallel()
	w := start(t, 0)
	file := filepath.Join(t.TempDir(), "pgpass")
	write(t, file, "*:*:*:alice:expired\n")
	cfg, err := connstring.Pool(fmt.Sprintf("host=127.0.0.1 port=%d user=alice dbname=postgres passfile=%s", w.Port, file))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := pool.Ping(t.Context()); stack.State(err) != "28P01" {
		t.Fatalf("with an expired password: %v", err)
	}
	write(t, file, "*:*:*:alice:open sesame\n")
	if err := pool.Ping(t.Context()); err != nil {
		t.Errorf("with the next one: %v", err)
	}
}
