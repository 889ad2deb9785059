// Package release has the tools that make a release, in a module of their own, and tests of
// what they are told: .goreleaser.yaml, the image, and the workflows.
package release

import (
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goreleaser/goreleaser/v2/pkg/config"
	"github.com/rhysd/actionlint"
)

const root = "../.."

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func definition(t *testing.T) config.Project {
	t.Helper()
	project, err := config.LoadReader(strings.NewReader(read(t, ".goreleaser.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// A key that GoReleaser doesn't know is refused, rather than ignored.
func TestDefinitionIsDecodedStrictly(t *testing.T) {
	t.Parallel()
	definition(t)
	text := strings.Replace(read(t, ".goreleaser.yaml"), "mod_timestamp:", "mod_timestmap:", 1)
	if _, err := config.LoadReader(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), "mod_timestmap") {
		t.Errorf("a misspelt key passes: %v", err)
	}
}

func TestBuildsAreStaticAndReproducible(t *testing.T) {
	t.Parallel()
	p := definition(t)
	if len(p.Builds) != 1 {
		t.Fatalf("%d builds", len(p.Builds))
	}
	b := p.Builds[0]
	if !slices.Equal(b.Goos, []string{"linux", "darwin"}) || !slices.Equal(b.Goarch, []string{"amd64", "arm64"}) {
		t.Errorf("it builds for %v on %v", b.Goos, b.Goarch)
	}
	if !slices.Contains(b.Env, "CGO_ENABLED=0") || !slices.Contains(b.Flags, "-trimpath") || b.ModTimestamp != "{{ .CommitTimestamp }}" {
		t.Errorf("the build isn't static and reproducible: %v %v %q", b.Env, b.Flags, b.ModTimestamp)
	}
	for _, a := range p.Archives {
		for _, f := range a.Files {
			if f.Info.MTime != "{{ .CommitDate }}" {
				t.Errorf("%s is archived with the time %q", f.Source, f.Info.MTime)
			}
		}
	}
	for _, n := range p.NFPMs {
		if n.MTime != "{{ .CommitDate }}" || n.RPM.BuildHost == "" {
			t.Error("a package has the time or the name of the machine that built it")
		}
		for _, c := range n.Contents {
			if c.FileInfo.MTime != "{{ .CommitDate }}" {
				t.Errorf("%s is packaged with the time %q", c.Destination, c.FileInfo.MTime)
			}
		}
	}
	if strings.Contains(read(t, ".goreleaser.yaml"), "{{ .Date }}") {
		t.Error("the time of the build gets into a release")
	}
}

// What is named in the definition is there, but for what `make package-files` makes.
func TestFilesOfTheDefinitionExist(t *testing.T) {
	t.Parallel()
	p := definition(t)
	var names []string
	for _, n := range p.NFPMs {
		names = append(names, n.Scripts.PreInstall, n.Scripts.PostInstall, n.Scripts.PreRemove, n.Scripts.PostRemove)
		for _, c := range n.Contents {
			names = append(names, c.Source)
		}
	}
	for _, d := range p.DockersV2 {
		names = append(names, d.Dockerfile)
	}
	for _, name := range names {
		if name == "" || strings.HasPrefix(name, "bin/") {
			continue
		}
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Error(err)
		}
	}
	if len(names) < 15 {
		t.Errorf("the definition names %d files only", len(names))
	}
}

// What has a version of its own in the tree has the same one.
func TestVersionsAgree(t *testing.T) {
	t.Parallel()
	versions := map[string][]string{}
	for file, pattern := range map[string]string{
		"clients/python/pyproject.toml": `(?m)^version = "(.+)"$`, "clients/typescript/package.json": `(?m)^  "version": "(.+)",$`,
		"clients/java/pom.xml": `(?m)^  <version>(.+)</version>$`, "clients/ruby/wirefence.gemspec": `spec\.version = "(.+)"`,
		"clients/rust/Cargo.toml": `(?m)^version = "(.+)"$`, "deploy/helm/wirefence/Chart.yaml": `(?m)^version: (.+)$`,
	} {
		found := regexp.MustCompile(pattern).FindStringSubmatch(read(t, file))
		if found == nil {
			t.Fatalf("%s has no version", file)
		}
		versions[found[1]] = append(versions[found[1]], file)
	}
	if len(versions) != 1 {
		t.Errorf("the versions are %v", versions)
	}
}

// The image of a release behaves as the one that is built from source.
func TestImagesAgree(t *testing.T) {
	t.Parallel()
	p := definition(t)
	if len(p.DockersV2) != 1 || !slices.Equal(p.DockersV2[0].Platforms, []string{"linux/amd64", "linux/arm64"}) {
		t.Fatalf("the images are %+v", p.DockersV2)
	}
	released, built := lastStage(read(t, p.DockersV2[0].Dockerfile)), lastStage(read(t, "deploy/Dockerfile"))
	if !maps.Equal(released, built) {
		t.Errorf("a release's image has\n%v, one from source\n%v", released, built)
	}
	if built["USER"] == "" || built["ENTRYPOINT"] == "" || !strings.Contains(read(t, p.DockersV2[0].Dockerfile), "COPY $TARGETPLATFORM/wirefence /wirefence\n") {
		t.Error("the image has no user, no entry point or no binary")
	}
}

// lastStage has what a container is started with.
func lastStage(dockerfile string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(dockerfile[strings.LastIndex(dockerfile, "\nFROM "):]) {
		word, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if word != "COPY" && word != "ARG" && word != "#" && word != "" {
			all[word] = value
		}
	}
	return all
}

var (
	uses   = regexp.MustCompile(`(?m)^\s*(?:- )?uses: (\S+)(.*)$`)
	pinned = regexp.MustCompile(`^[\w-]+/[\w-]+@[0-9a-f]{40}$`)
	says   = regexp.MustCompile(`^ # v\d+\.\d+\.\d+$`)
)

func TestWorkflows(t *testing.T) {
	t.Parallel()
	linter, err := actionlint.NewLinter(io.Discard, &actionlint.LinterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ci.yml", "release.yml"} {
		text := read(t, ".github/workflows/"+name)
		found, err := linter.Lint(name, []byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			t.Error(f)
		}
		if !strings.Contains(text, "\npermissions: {}\n") {
			t.Errorf("%s gives rights to all of its jobs", name)
		}
		actions := uses.FindAllStringSubmatch(text, -1)
		if len(actions) < 2 {
			t.Errorf("%s uses %d actions only", name, len(actions))
		}
		for _, action := range actions {
			if !pinned.MatchString(action[1]) || !says.MatchString(action[2]) {
				t.Errorf("%s uses %s, which is not pinned to a commit whose version is told", name, action[0])
			}
		}
	}
	// A misspelt key is found.
	found, err := linter.Lint("broken.yml", []byte(strings.Replace(read(t, ".github/workflows/ci.yml"), "timeout-minutes", "timeout-minute", 1)), nil)
	if err != nil || len(found) == 0 {
		t.Errorf("the linter finds nothing in a broken workflow: %v", err)
	}
}
