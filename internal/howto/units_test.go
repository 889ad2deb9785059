package howto

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/pages"
)

// systemd accepts the units of the page on scheduled jobs, without a warning.
func TestUnitsAreAccepted(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/howto/cron.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	args := []string{"verify"}
	for name, text := range pages.Files(string(page)) {
		if !strings.HasSuffix(name, ".service") && !strings.HasSuffix(name, ".timer") {
			continue
		}
		file := filepath.Join(dir, name)
		args = append(args, file)
		text = strings.ReplaceAll(text, "/usr/bin/wirefence", filepath.Join(tools, "wirefence"))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if len(args) != 3 {
		t.Fatalf("the page has the units %q", args[1:])
	}
	out, err := exec.Command("systemd-analyze", args...).CombinedOutput()
	if err != nil || strings.Contains(string(out), dir) {
		t.Errorf("systemd-analyze, which scripts/install-servers --test installs: %v\n%s", err, out)
	}
}
