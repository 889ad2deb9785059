// Package pgenv leads the clients of libpq elsewhere by their environment. A client that names a
// server itself isn't led.
//
// It imports nothing of this module.
package pgenv

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
)

// Server is where an environment leads clients of libpq.
type Server struct {
	env          []string
	service      string            // of PGSERVICE; "" for none
	serviceFile  string            // which defines it; "" if none does
	settings     map[string]string // of the service, by keyword
	hosts, ports []string
	upstream     string
}

// Read reads an environment as libpq does (documentation, "Environment Variables", "The
// Connection Service File"): the service comes before variables, and PGHOSTADDR before PGHOST.
// It fails where Debian's psql would choose a cluster by settings of its own, which a host turns
// off.
func Read(env []string) (*Server, error) {
	s := &Server{env: env, service: Value(env, "PGSERVICE")}
	s.readService()
	s.ports = strings.Split(cmp.Or(s.setting("port", "PGPORT"), "5432"), ",")
	named := cmp.Or(s.setting("hostaddr", "PGHOSTADDR"), s.setting("host", "PGHOST"))
	if named == "" && s.clusterIsChosen() {
		return nil, errors.New("PGHOST is not set, and Debian's pg_wrapper chooses the cluster by PGCLUSTER, .postgresqlrc or user_clusters")
	}
	s.hosts = strings.Split(named, ",")
	for i, host := range s.hosts {
		if host == "" {
			s.hosts[i] = defaultHost(s.ports[min(i, len(s.ports)-1)])
		}
	}
	s.upstream = s.url()
	return s, nil
}

// Upstream is the connection string of the server, without a user and a database.
func (s *Server) Upstream() string { return s.upstream }

// Socket is the path of the socket at which clients look for the server in a folder.
func (s *Server) Socket(folder string) string { return filepath.Join(folder, ".s.PGSQL."+s.ports[0]) }

// longestSocket is the length of a socket's path that all systems allow, in bytes.
const longestSocket = 103

// Folder makes a folder for Lead, which is the caller's to remove.
func (s *Server) Folder() (folder string, err error) {
	for _, in := range []string{os.TempDir(), "/tmp", "/dev/shm"} { // a container may have the last alone
		if folder, err = os.MkdirTemp(in, "wirefence-"); err == nil && len(s.Socket(folder)) <= longestSocket {
			return folder, nil
		}
		if err == nil {
			err = errors.Join(fmt.Errorf("%s is too long for the path of a socket", folder), os.Remove(folder))
		}
	}
	return "", err
}

// Lead returns the environment that leads to Socket(folder). It writes to the folder, which only
// this user may read: copies of the password file and of the service file that name the socket,
// too. The port stays, for clients that name another host without one.
func (s *Server) Lead(folder string) ([]string, error) {
	set := map[string]string{"PGHOST": folder, "PGHOSTADDR": ""}
	if len(s.ports) > 1 {
		set["PGPORT"] = s.ports[0]
	}
	if text, ok := s.passwords(folder); ok {
		set["PGPASSFILE"] = filepath.Join(folder, "pgpass")
		if err := os.WriteFile(set["PGPASSFILE"], []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	if s.serviceFile != "" {
		text, err := os.ReadFile(s.serviceFile)
		set["PGSERVICEFILE"] = filepath.Join(folder, "pg_service.conf")
		if err := errors.Join(err, os.WriteFile(set["PGSERVICEFILE"], []byte(s.services(string(text), folder)), 0o600)); err != nil {
			return nil, err
		}
	}
	return With(s.env, set), nil
}

// With returns an environment with other values of variables, and without those that are set to "".
func With(env []string, set map[string]string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		_, is := set[name]
		return is
	})
	for name, text := range set {
		if text != "" {
			env = append(env, name+"="+text)
		}
	}
	return env
}

// Value returns a variable's value in an environment. The last one counts.
func Value(env []string, name string) string {
	for _, entry := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

func (s *Server) setting(keyword, variable string) string {
	return cmp.Or(s.settings[keyword], Value(s.env, variable))
}

// home is the path of a file in the home folder.
func (s *Server) home(name string) string {
	folder := Value(s.env, "HOME")
	if who, err := user.Current(); folder == "" && err == nil { // as in a unit of systemd without User=
		folder = who.HomeDir
	}
	return filepath.Join(folder, name)
}

// clusterIsChosen reports whether Debian's pg_wrapper would take a cluster that an operator has
// chosen (pg_wrapper(1)).
func (s *Server) clusterIsChosen() bool {
	if Value(s.env, "PGCLUSTER") != "" {
		return true
	}
	return Value(s.env, "PGPORT") == "" && slices.ContainsFunc([]string{s.home(".postgresqlrc"), "/etc/postgresql-common/user_clusters"}, func(file string) bool {
		text, _ := os.ReadFile(file)
		return slices.ContainsFunc(strings.Split(string(text), "\n"), func(line string) bool {
			line = strings.TrimSpace(line)
			return line != "" && line[0] != '#'
		})
	})
}

// defaultHost is where libpq finds a server on this machine: the folder of distributions, which
// isn't everybody's to write, or that of PostgreSQL's own build if it has the socket.
func defaultHost(port string) string {
	switch {
	case exists("/var/run/postgresql"):
		return "/var/run/postgresql"
	case exists("/tmp/.s.PGSQL." + port):
		return "/tmp"
	}
	return "localhost"
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// url writes the server as a connection string, with the encryption that libpq would use.
func (s *Server) url() string {
	q := url.Values{"host": {strings.Join(s.hosts, ",")}, "port": {strings.Join(s.ports, ",")}}
	for keyword, variable := range map[string]string{
		"sslmode": "PGSSLMODE", "sslnegotiation": "PGSSLNEGOTIATION", "target_session_attrs": "PGTARGETSESSIONATTRS",
	} {
		if text := s.setting(keyword, variable); text != "" {
			q.Set(keyword, text)
		}
	}
	mode := q.Get("sslmode")
	if root := cmp.Or(s.setting("sslrootcert", "PGSSLROOTCERT"), s.home(".postgresql/root.crt")); root == "system" || exists(root) || strings.HasPrefix(mode, "verify") {
		q.Set("sslrootcert", root)
	}
	if cert := cmp.Or(s.setting("sslcert", "PGSSLCERT"), s.home(".postgresql/postgresql.crt")); exists(cert) && mode != "disable" {
		q.Set("sslcert", cert)
		q.Set("sslkey", cmp.Or(s.setting("sslkey", "PGSSLKEY"), s.home(".postgresql/postgresql.key")))
	}
	return "postgres:///?" + strings.ReplaceAll(q.Encode(), "+", "%20") // libpq reads a plus as one
}
