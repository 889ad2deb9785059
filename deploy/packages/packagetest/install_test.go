//go:build linux

package packagetest

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

const (
	settingsFile = "/etc/wirefence/wirefence.env"
	tokensFile   = "/etc/wirefence/admin-tokens"
)

func thisDeb(t *testing.T) string { return artifact(t, "*_"+runtime.GOARCH+".deb") }

// Everything that both kinds of package bring, with its mode and owner as `ls -l` has them.
var contents = map[string]string{
	"/usr/bin/wirefence":                                  "-rwxr-xr-x root/root",
	"/usr/lib/systemd/system/wirefence.service":           "-rw-r--r-- root/root",
	"/usr/lib/systemd/system/wirefence.socket":            "-rw-r--r-- root/root",
	"/etc/wirefence":                                      "drwxr-x--- root/wirefence",
	settingsFile:                                          "-rw-r----- root/wirefence",
	"/usr/share/man/man1/wirefence.1.gz":                  "-rw-r--r-- root/root",
	"/usr/share/man/man1/wirefence-proxy.1.gz":            "-rw-r--r-- root/root",
	"/usr/share/bash-completion/completions/wirefence":    "-rw-r--r-- root/root",
	"/usr/share/fish/vendor_completions.d/wirefence.fish": "-rw-r--r-- root/root",
	"/usr/share/doc/wirefence/copyright":                  "-rw-r--r-- root/root",
}

func TestContentsOfDebs(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		deb := artifact(t, "*_"+arch+".deb")
		if got := strings.TrimSpace(command(t, "dpkg-deb", "--field", deb, "Architecture")); got != arch {
			t.Errorf("%s is for %s", deb, got)
		}
		has := map[string]string{}
		for line := range strings.Lines(command(t, "dpkg-deb", "--contents", deb)) {
			f := strings.Fields(line)
			has[strings.TrimSuffix(strings.TrimPrefix(f[5], "."), "/")] = f[0] + " " + f[1]
		}
		compare(t, deb, has)
		if got := command(t, "dpkg-deb", "--info", deb, "conffiles"); got != settingsFile+"\n" {
			t.Errorf("%s has the conffiles %q", deb, got)
		}
	}
}

func TestContentsOfRPMs(t *testing.T) {
	for _, arch := range []string{"x86_64", "aarch64"} {
		rpm := artifact(t, "*."+arch+".rpm")
		if got := command(t, "rpm", "-qp", "--queryformat", "%{ARCH} %{NAME} %{BUILDHOST}", rpm); got != arch+" wirefence reproducible" {
			t.Errorf("%s is %s", rpm, got)
		}
		has := map[string]string{}
		for line := range strings.Lines(command(t, "rpm", "-qp", "--queryformat", "[%{FILEMODES:perms} %{FILEUSERNAME}/%{FILEGROUPNAME} %{FILENAMES}\n]", rpm)) {
			f := strings.Fields(line)
			has[f[2]] = f[0] + " " + f[1]
		}
		compare(t, rpm, has)
		if got := command(t, "rpm", "-qp", "--configfiles", rpm); got != settingsFile+"\n" {
			t.Errorf("%s has the configuration files %q", rpm, got)
		}
		if got := command(t, "rpm", "-qp", "--scripts", rpm); !strings.Contains(got, "useradd --system") || !strings.Contains(got, "try-restart wirefence.service") {
			t.Errorf("%s has the scripts\n%s", rpm, got)
		}
	}
}

func compare(t *testing.T, name string, has map[string]string) {
	t.Helper()
	for file, want := range contents {
		if has[file] != want {
			t.Errorf("%s has %s as %q, not %q", name, file, has[file], want)
		}
	}
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v (scripts/install-servers --all installs what is missing)", name, strings.Join(args, " "), err)
	}
	return string(out)
}

// A package is installed, configured, installed again over that, removed, and purged.
func TestInstallUpgradeRemove(t *testing.T) {
	s := newSystem(t)
	deb := thisDeb(t)
	if out := s.install(t, deb); !strings.Contains(out, "systemctl enable --now wirefence") {
		t.Errorf("the installation doesn't say how to go on:\n%s", out)
	}
	version := strings.TrimSpace(command(t, "dpkg-deb", "--field", deb, "Version"))
	if out := s.run(t, "wirefence", "version"); !strings.Contains(strings.ReplaceAll(out, "-", "~"), strings.ReplaceAll(version, "-", "~")) {
		t.Errorf("the package is of %s; the binary says %s", version, out)
	}
	if out := s.run(t, "getent", "passwd", "wirefence"); !strings.HasSuffix(out, ":/nonexistent:/usr/sbin/nologin\n") {
		t.Errorf("the account is %s", out)
	}
	s.isPrivate(t, settingsFile)
	s.isPrivate(t, tokensFile)
	if text, err := os.ReadFile(s.path(settingsFile)); err != nil || !strings.Contains(string(text), "\nWIREFENCE_ADMIN_TOKEN_FILE="+tokensFile+"\n") {
		t.Errorf("the settings don't name the file of tokens; %v", err)
	}
	tokens, err := os.ReadFile(s.path(tokensFile))
	if err != nil || !regexp.MustCompile(`^operator operate [A-Za-z0-9_-]{43}\n$`).Match(tokens) {
		t.Errorf("the tokens are %q; %v", tokens, err)
	}
	configured := "WIREFENCE_UPSTREAM=postgres://db.example/\n"
	if err := os.WriteFile(s.path(settingsFile), []byte(configured), 0o640); err != nil {
		t.Fatal(err)
	}
	if out := s.install(t, deb); strings.Contains(out, "not started yet") {
		t.Errorf("an upgrade greets as an installation does:\n%s", out)
	}
	s.isPrivate(t, settingsFile)
	if again, err := os.ReadFile(s.path(tokensFile)); err != nil || string(again) != string(tokens) {
		t.Errorf("an upgrade changes the tokens; %v", err)
	}
	if text, err := os.ReadFile(s.path(settingsFile)); err != nil || string(text) != configured {
		t.Errorf("the settings are %q after an upgrade; %v", text, err)
	}
	s.run(t, "dpkg", "--remove", "wirefence")
	if _, err := os.Stat(s.path("/usr/bin/wirefence")); err == nil {
		t.Error("the binary is there after a removal")
	}
	if _, err := os.Stat(s.path(settingsFile)); err != nil {
		t.Errorf("a removal took the settings: %v", err)
	}
	s.run(t, "dpkg", "--purge", "wirefence")
	if _, err := os.Stat(s.path("/etc/wirefence")); err == nil {
		t.Error("/etc/wirefence is there after a purge")
	}
	s.account(t, "wirefence") // stays
}

// isPrivate fails the test unless only root may write a file, and only root and the service may
// read it.
func (s *system) isPrivate(t *testing.T, file string) {
	t.Helper()
	_, gid := s.account(t, "wirefence")
	info, err := os.Stat(s.path(file))
	if err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	if info.Mode() != 0o640 || owner.Uid != 0 || owner.Gid != gid {
		t.Errorf("%s has mode %o and belongs to %d:%d, not to 0:%d", file, info.Mode(), owner.Uid, owner.Gid, gid)
	}
}

// systemd reads the units without a complaint, and finds little to harden.
func TestUnits(t *testing.T) {
	s := newSystem(t)
	s.install(t, thisDeb(t))
	out, err := s.try("systemd-analyze", "verify", "wirefence.service", "wirefence.socket")
	for line := range strings.Lines(out) {
		if strings.Contains(line, "wirefence") {
			t.Errorf("systemd-analyze verify: %s", line)
		}
	}
	if err != nil {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	// The network and its own user are what is left of the exposure.
	out = s.run(t, "systemd-analyze", "security", "--offline=true", "--no-pager", "wirefence.service")
	match := regexp.MustCompile(`Overall exposure level for wirefence.service: ([0-9.]+)`).FindStringSubmatch(out)
	if match == nil {
		t.Fatalf("systemd-analyze security:\n%s", out)
	}
	if level, err := strconv.ParseFloat(match[1], 64); err != nil || level > 2 {
		t.Errorf("the exposure is %s of 10\n%s", match[1], out)
	}
	service := s.unit(t, "wirefence.service")
	for name, want := range map[string]string{"Service.Type": "notify", "Service.User": "wirefence", "Service.EnvironmentFile": settingsFile,
		"Service.NoNewPrivileges": "yes", "Service.ProtectSystem": "strict", "Service.MemoryDenyWriteExecute": "yes",
		"Service.CapabilityBoundingSet": "", "Unit.Requires": "wirefence.socket"} {
		if got := service.one(t, name); got != want {
			t.Errorf("%s is %q, not %q", name, got, want)
		}
	}
	if name := s.unit(t, "wirefence.socket").one(t, "Socket.FileDescriptorName"); "WIREFENCE_LISTEN=fd:"+name != service.one(t, "Service.Environment") {
		t.Error(fmt.Sprint("the service doesn't accept at the socket ", name))
	}
}
