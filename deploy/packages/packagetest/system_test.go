//go:build linux

package packagetest

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

const dist = "../../../dist"

// inNamespace says that this process may mount.
const inNamespace = "WFTEST_NAMESPACE"

var base = flag.String("system", "/", "the root of the system that the packages are installed into a copy of")

// TestMain runs the tests in a mount namespace of their own, which takes all mounts along
// when it ends.
func TestMain(m *testing.M) {
	if os.Getenv(inNamespace) != "" {
		os.Exit(m.Run())
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "packagetest installs packages into an overlay of the system: run it as root")
		os.Exit(1)
	}
	self := exec.Command("/proc/self/exe", os.Args[1:]...)
	self.Env = append(os.Environ(), inNamespace+"=1")
	self.Stdout, self.Stderr = os.Stdout, os.Stderr
	self.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig is about the thread
	if err := self.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// artifact returns the path of the one file in dist/ that a pattern names.
func artifact(t *testing.T, pattern string) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dist, pattern))
	if err != nil || len(all) != 1 {
		t.Fatalf("dist/ has %d files %s, not one: run make snapshot. %v", len(all), pattern, err)
	}
	path, err := filepath.Abs(all[0])
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// system is a copy of a system, by default of the running one, that may be changed.
type system struct{ root string }

func newSystem(t *testing.T) *system {
	t.Helper()
	dir := t.TempDir()
	mount(t, "tmpfs", dir, "tmpfs", 0, "mode=755")
	for _, name := range []string{"upper", "work", "root"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := &system{filepath.Join(dir, "root")}
	mount(t, "overlay", s.root, "overlay", 0, fmt.Sprintf("lowerdir=%[2]s,upperdir=%[1]s/upper,workdir=%[1]s/work", dir, *base))
	mount(t, "/proc", s.path("/proc"), "", syscall.MS_BIND|syscall.MS_REC, "")
	mount(t, "/dev", s.path("/dev"), "", syscall.MS_BIND|syscall.MS_REC, "")
	mount(t, "tmpfs", s.path("/run"), "tmpfs", 0, "mode=755")
	mount(t, "tmpfs", s.path("/tmp"), "tmpfs", 0, "mode=1777")
	return s
}

func mount(t *testing.T, source, at, kind string, flags uintptr, data string) {
	t.Helper()
	if err := syscall.Mount(source, at, kind, flags, data); err != nil {
		t.Fatalf("mount %s at %s: %v", source, at, err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(at, syscall.MNT_DETACH) })
}

func (s *system) path(name string) string { return filepath.Join(s.root, name) }

// run runs a command in the system, as root, and returns what it printed.
func (s *system) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.try(args...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (s *system) try(args ...string) (string, error) {
	cmd := exec.Command("/usr/bin/env", append([]string{"-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"}, args...)...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: s.root}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// install installs or upgrades.
func (s *system) install(t *testing.T, deb string) string {
	t.Helper()
	text, err := os.ReadFile(deb)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.path("/tmp/wirefence.deb"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	return s.run(t, "dpkg", "--install", "/tmp/wirefence.deb")
}

// account returns the ids that the system has for a user.
func (s *system) account(t *testing.T, name string) (uid, gid uint32) {
	t.Helper()
	fields := strings.Split(s.run(t, "getent", "passwd", name), ":")
	if len(fields) < 7 {
		t.Fatalf("there is no user %s", name)
	}
	for i, into := range map[int]*uint32{2: &uid, 3: &gid} {
		n, err := strconv.ParseUint(fields[i], 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		*into = uint32(n)
	}
	return uid, gid
}

// unitFile is a unit by section and name; a name may be given several times.
type unitFile map[string][]string

func (s *system) unit(t *testing.T, name string) unitFile {
	t.Helper()
	text, err := os.ReadFile(s.path("/usr/lib/systemd/system/" + name))
	if err != nil {
		t.Fatal(err)
	}
	u, section := unitFile{}, ""
	for line := range bytes.Lines(text) {
		text := strings.TrimSpace(string(line))
		if strings.HasPrefix(text, "[") {
			section = strings.Trim(text, "[]")
		} else if name, value, ok := strings.Cut(text, "="); ok && !strings.HasPrefix(text, "#") {
			u[section+"."+name] = append(u[section+"."+name], value)
		}
	}
	return u
}

// one returns the value of a setting that must be there once.
func (u unitFile) one(t *testing.T, name string) string {
	t.Helper()
	if len(u[name]) != 1 {
		t.Fatalf("the unit has %s %d times", name, len(u[name]))
	}
	return u[name][0]
}
