package pgenv

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// passwords returns the password file with lines for the folder of a socket besides those of the
// server. Some drivers look for localhost, whatever the folder is: for them come lines behind all
// others. It returns false where libpq would read no file.
func (s *Server) passwords(folder string) (string, bool) {
	file := cmp.Or(Value(s.env, "PGPASSFILE"), s.home(".pgpass"))
	info, err := os.Stat(file)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return "", false
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", false
	}
	var lines, behind []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\r\n")
		if host, rest := cutField(line); rest != "" && line[0] != '#' && s.hasHost(host) {
			lines = append(lines, escaper.Replace(folder)+":"+rest)
			behind = append(behind, "localhost:"+rest)
		}
		lines = append(lines, line)
	}
	return strings.Join(append(lines, behind...), "\n") + "\n", true
}

// hasHost reports whether the password file means the server by a host. A star means the socket,
// too.
func (s *Server) hasHost(host string) bool {
	return slices.ContainsFunc(s.hosts, func(h string) bool { return h == host || filepath.IsAbs(h) && host == "localhost" }) ||
		host != "" && host == s.setting("host", "PGHOST") // libpq looks for the name, not for the address
}

var escaper = strings.NewReplacer(`\`, `\\`, ":", `\:`)

// cutField cuts the first field of a line of a password file, in which a backslash escapes a
// character. rest is empty if there is no other.
func cutField(line string) (field, rest string) {
	var read []byte
	for i := 0; i < len(line); i++ {
		switch {
		case line[i] == ':':
			return string(read), line[i+1:]
		case line[i] == '\\' && i+1 < len(line):
			i++
		}
		read = append(read, line[i])
	}
	return string(read), ""
}

// readService finds the service of PGSERVICE: in the user's file, or in the system's.
func (s *Server) readService() {
	if s.service == "" {
		return
	}
	for _, file := range []string{
		cmp.Or(Value(s.env, "PGSERVICEFILE"), s.home(".pg_service.conf")),
		filepath.Join(cmp.Or(Value(s.env, "PGSYSCONFDIR"), "/etc/postgresql-common"), "pg_service.conf"),
	} {
		text, _ := os.ReadFile(file)
		settings := map[string]string{}
		if s.lines(string(text), func(line string, within bool) {
			if keyword, value, _ := strings.Cut(line, "="); within {
				settings[keyword] = cmp.Or(settings[keyword], value)
			}
		}) {
			s.serviceFile, s.settings = file, settings
			return
		}
	}
}

// lines passes each line of a service file to each, with whether it is in the section of the service.
// It reports whether the file has the service, whose first section counts.
func (s *Server) lines(text string, each func(line string, within bool)) (found bool) {
	within := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		begins := strings.HasPrefix(line, "[")
		each(line, within && !begins)
		if begins {
			within = !found && line == "["+s.service+"]"
			found = found || within
		}
	}
	return found
}

// services returns the text of a service file in which the service is at a socket.
func (s *Server) services(text, folder string) string {
	var lines []string
	s.lines(text, func(line string, within bool) {
		keyword, _, _ := strings.Cut(line, "=")
		if within && slices.Contains([]string{"host", "hostaddr", "port"}, keyword) {
			return
		}
		lines = append(lines, line)
		if line == "["+s.service+"]" {
			lines = append(lines, "host="+folder, "port="+s.ports[0])
		}
	})
	return strings.Join(lines, "\n") + "\n"
}
