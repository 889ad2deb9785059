package jobstest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// world is a database in which a job is played, with servers of its own: decoding begins when all
// transactions of a server have ended, and other jobs are frozen in theirs.
type world struct {
	*stack.DB
	cfg   *pgx.ConnConfig
	redis *servers.Redis
	dir   string   // of temporary files
	env   []string // of all processes; libpq's variables name the database
}

func newWorld(t *testing.T) *world {
	t.Helper()
	pg := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{})).EndWith(t)
	w := &world{DB: stack.NewDB(t, pg, suite.Objects), redis: stack.Started(servers.StartRedis(t.Context())).EndWith(t), dir: t.TempDir()}
	url := w.URL(w.Name)
	var err error
	if w.cfg, err = pgx.ParseConfig(url); err != nil {
		t.Fatal(err)
	}
	w.env = append(os.Environ(), "WIREFENCE_DATABASE_URL="+url, "PGHOST="+w.cfg.Host, fmt.Sprint("PGPORT=", w.cfg.Port), "PGUSER="+w.cfg.User, "PGDATABASE="+w.cfg.Database,
		"PGSSLMODE=disable", "BROKER="+w.redis.URL(), "REDIS="+w.redis.URL(), "LOCK=nightly", "TMPDIR="+w.dir, "PYTHONDONTWRITEBYTECODE=1")
	return w
}

// guard guards tables for the lease nightly, and has the job log in as a role.
func (w *world) guard(t *testing.T, role string, tables ...string) {
	t.Helper()
	w.env = append(w.env, "PGUSER="+role)
	for _, table := range tables {
		w.Exec(t, "SELECT wirefence.protect('public."+table+"', 'nightly')")
	}
	w.Exec(t,
		"SELECT wirefence.declare_resource('nightly', 'an acquire gives up before the ttl of 3 s is over', preempt_after => '1 s')",
		"GRANT ALL ON ALL TABLES IN SCHEMA public TO app", "GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO app")
}

// words are the words of a command with what is only known now.
func (w *world) words(words ...string) (all []string) {
	known := strings.NewReplacer("{wirefence}", program, "{dir}", w.dir, "{url}", w.URL(w.Name), "{redis}", w.redis.URL(),
		"{jdbc}", fmt.Sprintf("jdbc:postgresql://%s:%d/%s", w.cfg.Host, w.cfg.Port, w.cfg.Database), "{port}", stack.Port(w.redis.Addr()))
	for _, word := range words {
		all = append(all, known.Replace(word))
	}
	return all
}
