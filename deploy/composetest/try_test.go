package composetest

import (
	"os"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/pages"
)

// The line of the front page builds the image, and shows a zombie refused.
func TestTry(t *testing.T) {
	text, err := os.ReadFile(root + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	line := ""
	for _, b := range pages.Blocks(string(text)) {
		if strings.HasPrefix(b.Text, "docker build ") {
			line = b.Text
		}
	}
	p := newProject(t)
	// The version is that of the other images, so that the build is theirs.
	line = strings.Replace(strings.ReplaceAll(line, "wirefence/try", "wirefence/try:"+p.name), " -t", " --build-arg VERSION="+p.name+" -t", 1)
	cmd := p.command(t.Context(), "bash", "-c", line)
	cmd.Env = append(cmd.Env, "DOCKER_BUILDKIT=1") // the default of later engines
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "PostgreSQL refused the zombie") || !strings.Contains(string(out), "ERROR WF001") {
		t.Errorf("%v\n%s", err, out)
	}
}
