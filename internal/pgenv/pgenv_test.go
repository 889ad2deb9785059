package pgenv

import (
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// in makes a home folder with files, and returns it.
func in(t *testing.T, files map[string]string) string {
	t.Helper()
	home := t.TempDir()
	for name, text := range files {
		file := filepath.Join(home, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return home
}

func read(t *testing.T, home string, env ...string) *Server {
	t.Helper()
	s, err := Read(append(env, "HOME="+home, "PGSYSCONFDIR="+home))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The upstream is where libpq would connect, encrypted as libpq would.
func TestUpstream(t *testing.T) {
	t.Parallel()
	services := map[string]string{".pg_service.conf": "[other]\nhost=no\n\n[shop]\n# a comment\nhost=db\nport=5433\nsslmode=require\nhost=late\n[shop]\nport=1\n"}
	certificates := map[string]string{".postgresql/root.crt": "", ".postgresql/postgresql.crt": "", ".postgresql/postgresql.key": ""}
	for _, c := range []struct {
		name  string
		files map[string]string
		env   []string
		want  string
	}{
		{"a host", nil, []string{"PGHOST=db"}, "host=db port=5432"},
		{"a variable that is set twice", nil, []string{"PGHOST=a", "PGHOST=db"}, "host=db port=5432"},
		{"a folder", nil, []string{"PGHOST=/run/pg 1", "PGPORT=5433"}, "host=/run/pg 1 port=5433"},
		{"several hosts", nil, []string{"PGHOST=a,b", "PGPORT=5432,5433", "PGTARGETSESSIONATTRS=read-write"}, "host=a,b port=5432,5433 target_session_attrs=read-write"},
		{"an address", nil, []string{"PGHOST=db", "PGHOSTADDR=10.0.0.1"}, "host=10.0.0.1 port=5432"},
		{"a service", services, []string{"PGHOST=elsewhere", "PGPORT=1", "PGSERVICE=shop"}, "host=db port=5433 sslmode=require"},
		{"an unknown service", services, []string{"PGHOST=db", "PGSERVICE=none"}, "host=db port=5432"},
		{"certificates of the home folder", certificates, []string{"PGHOST=db"}, "host=db port=5432 sslcert=~/.postgresql/postgresql.crt sslkey=~/.postgresql/postgresql.key sslrootcert=~/.postgresql/root.crt"},
		{"no encryption", certificates, []string{"PGHOST=db", "PGSSLMODE=disable"}, "host=db port=5432 sslmode=disable sslrootcert=~/.postgresql/root.crt"},
		{"an authority that is missing", nil, []string{"PGHOST=db", "PGSSLMODE=verify-ca"}, "host=db port=5432 sslmode=verify-ca sslrootcert=~/.postgresql/root.crt"},
		{"the system's authorities", nil, []string{"PGHOST=db", "PGSSLROOTCERT=system", "PGSSLNEGOTIATION=direct"}, "host=db port=5432 sslnegotiation=direct sslrootcert=system"},
	} {
		home := in(t, c.files)
		query, ok := strings.CutPrefix(read(t, home, c.env...).Upstream(), "postgres:///?")
		all, err := url.ParseQuery(query)
		var words []string
		for name, values := range all {
			words = append(words, name+"="+values[0])
		}
		slices.Sort(words)
		if got := strings.ReplaceAll(strings.Join(words, " "), home, "~"); got != c.want || !ok || err != nil {
			t.Errorf("%s: %s, want %s, %v", c.name, got, c.want, err)
		}
	}
}

// Debian's psql chooses among clusters by settings that a host turns off.
func TestClustersOfDebian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, rc string
		env      []string
		fails    bool
	}{
		{"nothing", "# none\n", nil, false},
		{"PGCLUSTER", "", []string{"PGCLUSTER=16/main"}, true},
		{"PGCLUSTER and a host", "", []string{"PGCLUSTER=16/main", "PGHOST=db"}, false},
		{"a file", "16 main *\n", nil, true},
		{"a file and a port", "16 main *\n", []string{"PGPORT=5433"}, false},
	} {
		_, err := Read(append(c.env, "HOME="+in(t, map[string]string{".postgresqlrc": c.rc})))
		if (err != nil) != c.fails {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestLead(t *testing.T) {
	t.Parallel()
	home := in(t, map[string]string{
		".pgpass":          "# db:5432:*:app:comment\nelsewhere:5432:*:app:no\ndb:5432:*:app:it's\\:secret\n*:*:*:*:any",
		".pg_service.conf": "[shop]\nhost=db\nhostaddr=10.0.0.1\nuser=app\n[other]\nhost=b\n",
	})
	folder := in(t, nil)
	env, err := read(t, home, "PGHOST=no", "PGHOSTADDR=10.9.9.9", "PGSERVICE=shop", "PGUSER=app").Lead(folder)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(env)
	want := []string{
		"HOME=" + home, "PGHOST=" + folder, "PGPASSFILE=" + folder + "/pgpass", "PGSERVICE=shop", "PGSERVICEFILE=" + folder + "/pg_service.conf",
		"PGSYSCONFDIR=" + home, "PGUSER=app",
	}
	if !slices.Equal(env, want) {
		t.Errorf("the environment is %q, want %q", env, want)
	}
	for name, want := range map[string]string{
		"pgpass":          "# db:5432:*:app:comment\nelsewhere:5432:*:app:no\nFOLDER:5432:*:app:it's\\:secret\ndb:5432:*:app:it's\\:secret\n*:*:*:*:any\nlocalhost:5432:*:app:it's\\:secret\n",
		"pg_service.conf": "[shop]\nhost=FOLDER\nport=5432\nuser=app\n[other]\nhost=b\n",
	} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if got := strings.ReplaceAll(string(text), folder, "FOLDER"); err != nil || got != want {
			t.Errorf("%s is %q, want %q, %v", name, got, want, err)
		}
		if info, _ := os.Stat(filepath.Join(folder, name)); info.Mode().Perm() != 0o600 {
			t.Errorf("%s has the mode %v", name, info.Mode())
		}
	}
}

// libpq reads no password file that others may read.
func TestAnOpenPasswordFileStays(t *testing.T) {
	t.Parallel()
	home := in(t, map[string]string{".pgpass": "db:5432:*:app:secret\n"})
	if err := os.Chmod(filepath.Join(home, ".pgpass"), 0o644); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	env, err := read(t, home, "PGHOST=a,db", "PGPORT=1,2").Lead(folder)
	if left, _ := os.ReadDir(folder); err != nil || len(left) > 0 || Value(env, "PGPASSFILE") != "" {
		t.Errorf("%q, %v, %v", env, left, err)
	}
	if Value(env, "PGPORT") != "1" || Value(env, "PGHOST") != folder {
		t.Errorf("the environment is %q", env)
	}
}
