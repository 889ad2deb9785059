package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/pgenv"
)

var errNotFound = errors.New("command not found")

// lookUp finds the command in the PATH of env, as a shell does: it reports a file that can't
// be executed only if it finds no other.
func lookUp(command, env []string) (string, error) {
	if len(command) == 0 || command[0] == "" {
		return "", fmt.Errorf("no command: %w", errNotFound)
	}
	name := command[0]
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	var denied error
	for _, dir := range filepath.SplitList(pgenv.Value(env, "PATH")) {
		if dir == "" {
			dir = "."
		}
		path := filepath.Join(dir, name)
		if dir == "." {
			path = "./" + name
		}
		err := executable(path)
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, os.ErrNotExist) && denied == nil {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", fmt.Errorf("%s: %w", name, errNotFound)
}

func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s: is a directory", path)
	case info.Mode().Perm()&0o111 == 0:
		return fmt.Errorf("%s: %w", path, os.ErrPermission)
	}
	return nil
}

// FenceIn returns the fence of a command under a lease: with that of an outer run, which env has
// and whose lease is held as well.
func FenceIn(env []string, lease Lease) (fence.Fence, error) {
	f, err := fences(pgenv.Value(env, fenceVariable), lease.Fence())
	if err != nil {
		err = fmt.Errorf("%s in the environment, which is carried on, holds %q: %w", fenceVariable, pgenv.Value(env, fenceVariable), err)
	}
	return f, err
}

// withFence adds the fence to env: PGOPTIONS for clients of libpq, or PGAPPNAME, and the token and
// the fence for scripts. label stands behind a fence in PGAPPNAME.
func withFence(env []string, lease Lease, byName bool, label string) ([]string, error) {
	f, err := FenceIn(env, lease)
	if err != nil {
		return nil, err
	}
	set := map[string]string{"WIREFENCE_TOKEN": lease.Token().String(), fenceVariable: f.String()}
	if given := pgenv.Value(env, "PGOPTIONS"); !byName || strings.Contains(given, fence.Variable) { // which comes before the name
		set["PGOPTIONS"] = pgOptions(given, f.String())
	}
	if byName {
		if given := pgenv.Value(env, "PGAPPNAME"); given != "" {
			label = given[strings.IndexByte(given, '~')+1:] // without the fence of an outer run
		}
		if set["PGAPPNAME"], err = f.Name(label); err != nil {
			return nil, err
		}
	}
	return pgenv.With(env, set), nil
}

const fenceVariable = "WIREFENCE_FENCE"

// fences joins ours with the outer fence, which may be empty. For a resource of both, ours
// counts.
func fences(outer string, ours fence.Fence) (fence.Fence, error) {
	if outer == "" {
		return ours, nil
	}
	all, err := fence.Parse(outer)
	if err != nil {
		return fence.Fence{}, err
	}
	for _, p := range ours.Pairs() {
		all = all.Without(p.Resource)
	}
	return all.Merge(ours)
}

// pgOptions appends the fence to the value of PGOPTIONS. PostgreSQL splits it at blanks, a
// backslash escapes the next character, and the last setting of a name counts. A fence has
// neither blanks nor backslashes. PostgreSQL ignores a single backslash at the end, which would
// escape the appended blank.
func pgOptions(given, f string) string {
	bare := strings.TrimRight(given, `\`)
	given = bare + strings.Repeat(`\`, (len(given)-len(bare))/2*2)
	option := "-c " + fence.Variable + "=" + f
	if given == "" {
		return option
	}
	return given + " " + option
}
