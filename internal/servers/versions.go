package servers

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// CacheDir is where scripts/install-servers puts the PostgreSQL versions that
// the distribution doesn't have, and where new clusters are kept: $WIREFENCE_CACHE, else /var/cache/wirefence for
// root (other accounts must be able to run what is in it), else the user's own.
func CacheDir() string {
	if dir := os.Getenv("WIREFENCE_CACHE"); dir != "" {
		return dir
	}
	if os.Geteuid() == 0 {
		return "/var/cache/wirefence"
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, "wirefence")
}

// PostgresVersions returns the major versions that can be started, ascending.
func PostgresVersions() []int {
	var all []int
	for major := range postgresBinaries() {
		all = append(all, major)
	}
	slices.Sort(all)
	return all
}

// DefaultVersion returns the major version that is started where none is asked for: the
// distribution's, or else the newest; 0 if there is none.
func DefaultVersion() int { return defaultMajor(postgresBinaries()) }

// Programs is the folder of the default version's programs, such as psql. Debian's on the PATH are Perl
// programs that take a tenth of a second to find these.
func Programs() string { return postgresBinaries()[DefaultVersion()] }

// postgresBinaries finds the folders that hold initdb and postgres, by major
// version. The distribution's packages come before the cache.
var postgresBinaries = sync.OnceValue(func() map[int]string {
	found := map[int]string{}
	add := func(pattern string) {
		dirs, _ := filepath.Glob(pattern)
		for _, dir := range dirs {
			if major := postgresMajor(dir); major > 0 && found[major] == "" {
				found[major] = dir
			}
		}
	}
	add("/usr/lib/postgresql/*/bin")
	add("/usr/pgsql-*/bin")
	if runtime.GOOS == "darwin" {
		add("/opt/homebrew/opt/postgresql@*/bin")
		add("/usr/local/opt/postgresql@*/bin")
	}
	add(filepath.Join(CacheDir(), "postgres", "*", "native", "bin"))
	if path, err := exec.LookPath("postgres"); err == nil {
		add(filepath.Dir(path))
	}
	return found
})

func postgresMajor(bin string) int {
	if _, err := os.Stat(filepath.Join(bin, "initdb")); err != nil {
		return 0
	}
	out, err := exec.Command(filepath.Join(bin, "postgres"), "--version").Output()
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(out)) // postgres (PostgreSQL) 15.18 (Debian …)
	if len(fields) < 3 {
		return 0
	}
	major, _, _ := strings.Cut(fields[2], ".")
	n, _ := strconv.Atoi(major)
	return n
}

func defaultMajor(bins map[int]string) int {
	best := 0
	for major, dir := range bins {
		if strings.HasPrefix(dir, "/usr/") && major > best {
			best = major
		}
	}
	if best == 0 {
		for major := range bins {
			best = max(best, major)
		}
	}
	return best
}
