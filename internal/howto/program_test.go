package howto

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/wirefence/wirefence/internal/pages"
)

// The program in Go that a page shows compiles as it stands.
func TestTheProgramCompiles(t *testing.T) {
	t.Parallel()
	text, err := pages.First("../../docs/reference/holding.md", "In Go", "go")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "vet", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
