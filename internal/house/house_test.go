package house

import (
	"bytes"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/fence"
)

const root = "../.."

// names returns the slash-separated paths of the repository's files: what git tracks or would
// add. Outside a git repository it is all that is there.
func names(t *testing.T) []string {
	t.Helper()
	if names := tracked(); len(names) > 0 {
		return names
	}
	return walked(t)
}

// files returns the texts of the repository by path.
func files(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, name := range names(t) {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil || bytes.IndexByte(text, 0) >= 0 {
			continue // deleted, a link to a folder, or not a text
		}
		texts[name] = string(text)
	}
	if texts["README.md"] == "" || texts["go.mod"] == "" {
		t.Fatal("the repository was not found")
	}
	return texts
}

// Each clone has each file for ever. A file above 1 MB is a build's result that was added by
// mistake.
func TestNoFileIsLarge(t *testing.T) {
	t.Parallel()
	for _, name := range names(t) {
		if info, err := os.Lstat(filepath.Join(root, name)); err == nil && info.Size() > 1_000_000 {
			t.Errorf("%s has %d bytes", name, info.Size())
		}
	}
}

func tracked() []string {
	out, err := exec.Command("git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		return nil
	}
	return strings.Split(strings.Trim(string(out), "\x00"), "\x00")
}

func walked(t *testing.T) (names []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", ".cache", "bin", "node_modules"}, entry.Name()):
			return filepath.SkipDir
		case entry.Type().IsRegular():
			name, err := filepath.Rel(root, file)
			names = append(names, filepath.ToSlash(name))
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// docs are the texts that speak to users.
func docs(texts map[string]string) (all string) {
	for name, text := range texts {
		if name == "README.md" || strings.HasPrefix(name, "docs/") && strings.HasSuffix(name, ".md") {
			all += text
		}
	}
	return all
}

func TestEverySQLStateIsDocumented(t *testing.T) {
	t.Parallel()
	page := files(t)["docs/troubleshooting.md"]
	for state, condition := range fence.States() {
		if !strings.Contains(page, "\n### "+string(state)+", "+condition+"\n") {
			t.Errorf("docs/troubleshooting.md has no section on %s, %s", state, condition)
		}
	}
	for _, code := range regexp.MustCompile(`\bWF\d{3}\b`).FindAllString(docs(files(t)), -1) {
		if fence.SQLState(code).Condition() == "" {
			t.Errorf("the docs speak of %s, which is no SQLSTATE of ours", code)
		}
	}
}

var variable = regexp.MustCompile(`\bWIREFENCE_[A-Z][A-Z_]*[A-Z]\b`)

// Variables that are not settings of the binary: those that `wirefence lock`
// gives its command, and the ones of scripts and of the compose file.
var notSettings = []string{
	"WIREFENCE_TOKEN", "WIREFENCE_FENCE",
	"WIREFENCE_CACHE", "WIREFENCE_VERSION", "WIREFENCE_PORT", "WIREFENCE_ADMIN_PORT", "WIREFENCE_API_PORT",
}

func TestDeployedVariablesAreDocumented(t *testing.T) {
	t.Parallel()
	texts := files(t)
	all := docs(texts)
	for name, text := range texts {
		if name != "docker-compose.yml" && (!strings.HasPrefix(name, "deploy/") || strings.HasSuffix(name, "_test.go")) {
			continue
		}
		for _, v := range variable.FindAllString(text, -1) {
			if !strings.Contains(all, "`"+v+"`") && !strings.Contains(all, "`"+v+"=") {
				t.Errorf("%s has %s, which no document explains", name, v)
			}
		}
	}
}

// settings returns the rows of a document's table of settings: defaults by
// name.
func settings(text string) map[string]string {
	rows := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(WIREFENCE_[A-Z_]+)` \\| ([^|]+) \\|").FindAllStringSubmatch(text, -1) {
		rows[row[1]] = row[2]
	}
	return rows
}

func TestSettingsOfTheDocsExist(t *testing.T) {
	t.Parallel()
	texts := files(t)
	known := settings(texts["docs/reference/settings.md"])
	if len(known) == 0 {
		t.Error("docs/reference/settings.md has no table of settings")
	}
	for _, v := range variable.FindAllString(docs(texts), -1) {
		of := strings.TrimSuffix(v, "_FILE") // a setting's value may be in a file
		if known[v] == "" && known[of] == "" && !slices.Contains(notSettings, v) {
			t.Errorf("the docs speak of %s, which has no row in docs/reference/settings.md", v)
		}
	}
}

// The names are put together here, so that this file doesn't hold them.
var foreign = []string{
	".lib" + "rary", "proxy.gol" + "ang.org", "sum.gol" + "ang.org", "registry.npm" + "js", "registry.yarn" + "pkg", "registry-1.dock" + "er.io",
	"deb.deb" + "ian.org", "security.deb" + "ian.org", "archive.ubu" + "ntu.com", "security.ubu" + "ntu.com", "apt.postg" + "resql.org",
	"files.pythonho" + "sted.org", "py" + "pi.org", "repo.mav" + "en.", "repo1.mav" + "en.", "crates" + ".io", "rubyg" + "ems.org",
	"gcr" + ".io", "ghcr" + ".io", "quay" + ".io",
}

var ofOneMachine = regexp.MustCompile(`(^|[^\w.-])/wo` + `rk/`)

// foreignTo returns what of a line is foreign, "" for nothing. To search for each name takes a tenth of the
// time of one expression.
func foreignTo(line string) string {
	for _, name := range foreign {
		if strings.Contains(line, name) {
			return name
		}
	}
	if strings.Contains(line, "/wo"+"rk/") {
		return ofOneMachine.FindString(line)
	}
	return ""
}

func TestNothingForeign(t *testing.T) {
	t.Parallel()
	for name, text := range files(t) {
		for n, line := range strings.Split(text, "\n") {
			if found := foreignTo(line); found != "" {
				t.Errorf("%s:%d names %q: a registry's host, or a path of one machine", name, n+1, found)
			}
		}
	}
}

func TestForeignIsNoticed(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"see /wo" + "rk/main", `"resolved": "https://registry.npm` + `js.org/pg"`, "FROM ghcr" + ".io/a/b", "https://proxy.gol" + "ang.org",
	} {
		if foreignTo(text) == "" {
			t.Errorf("%q is not noticed", text)
		}
	}
	for _, text := range []string{"golang.org/x/sys", "a/work/b", "postgres:18", "http://www.apache.org"} {
		if foreignTo(text) != "" {
			t.Errorf("%q is taken for foreign", text)
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

func TestLinksResolve(t *testing.T) {
	t.Parallel()
	texts := files(t)
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if path.Ext(name) != ".md" && name != "llms.txt" {
			continue
		}
		for _, match := range link.FindAllStringSubmatch(texts[name], -1) {
			target, err := url.Parse(match[1])
			if err != nil {
				t.Errorf("%s links to %s: %v", name, match[1], err)
				continue
			}
			if target.IsAbs() {
				continue
			}
			file := name
			if target.Path != "" {
				file = path.Join(path.Dir(name), target.Path)
			}
			if _, err := os.Stat(filepath.Join(root, file)); err != nil {
				t.Errorf("%s links to %s, which is not there", name, match[1])
			} else if target.Fragment != "" && !slices.Contains(anchors(texts[file]), target.Fragment) {
				t.Errorf("%s links to %s, which has no such heading", name, match[1])
			}
		}
	}
}

// anchors returns the fragments that a document's headings have when they are
// rendered.
func anchors(text string) (all []string) {
	dropped := regexp.MustCompile("[^a-z0-9 _-]")
	for line := range strings.Lines(text) {
		if heading, found := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); found && line[0] == '#' {
			plain := dropped.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			all = append(all, strings.ReplaceAll(plain, " ", "-"))
		}
	}
	return all
}

// Every page is in the index of docs/ and in the site's navigation.
func TestEveryPageIsListed(t *testing.T) {
	t.Parallel()
	texts := files(t)
	for name := range texts {
		page, found := strings.CutPrefix(name, "docs/")
		if !found || path.Ext(page) != ".md" || page == "README.md" {
			continue
		}
		if !strings.Contains(texts["docs/README.md"], "("+page+")") {
			t.Errorf("%s is not listed in docs/README.md", name)
		}
		if !strings.Contains(texts["mkdocs.yml"], ": "+page+"\n") {
			t.Errorf("%s is not in the nav of mkdocs.yml", name)
		}
	}
}

// The messages in docs/troubleshooting.md are those of the product, so that users find them
// by searching.
func TestMessagesArePrinted(t *testing.T) {
	t.Parallel()
	texts := files(t)
	var sources strings.Builder
	for name, text := range texts {
		if path.Ext(name) == ".sql" || path.Ext(name) == ".go" && !strings.HasSuffix(name, "_test.go") {
			sources.WriteString(strings.ReplaceAll(text, "''", "'"))
		}
	}
	shown := regexp.MustCompile(`(?m)^(?:ERROR|FATAL|HINT):  (.*)$|^- (?:\*\*)?`+"`([^`\n]+ [^`\n]+)`").FindAllStringSubmatch(texts["docs/troubleshooting.md"], -1)
	if len(shown) < 20 {
		t.Errorf("docs/troubleshooting.md shows only %d messages", len(shown))
	}
	quoted := regexp.MustCompile(`"[^"]*"|(?:WIREFENCE_)?…|--source [a-z]+|^(?:PREPARE TRANSACTION|VACUUM|PREPARE) | (?:PREPARE|VACUUM|CALL) `)
	for _, message := range shown {
		for _, part := range quoted.Split(message[1]+message[2], -1) {
			if part = strings.TrimSpace(part); !strings.Contains(sources.String(), part) {
				t.Errorf("docs/troubleshooting.md shows %q, of which nothing in the code says %q", message[1]+message[2], part)
			}
		}
	}
}

// The README opens with the two commands that a newcomer tries first.
func TestQuickCommandsComeFirst(t *testing.T) {
	t.Parallel()
	_, after, found := strings.Cut(files(t)["README.md"], "```sh\n")
	if !found {
		t.Fatal("README.md has no commands")
	}
	block, _, _ := strings.Cut(after, "```")
	var commands []string
	for line := range strings.Lines(block) {
		command, _, _ := strings.Cut(line, "#")
		commands = append(commands, strings.TrimSpace(command))
	}
	if !slices.Equal(commands, []string{"make demo", "make test"}) {
		t.Errorf("README.md begins with %q", commands)
	}
}

func TestMakeTargetsExist(t *testing.T) {
	t.Parallel()
	texts := files(t)
	for _, target := range []string{"demo", "test", "bench", "lint", "fuzz", "build"} {
		if !regexp.MustCompile(`(?m)^` + target + `:.*## `).MatchString(texts["Makefile"]) {
			t.Errorf("make help doesn't list %s", target)
		}
	}
	for name, text := range texts {
		if path.Ext(name) != ".md" {
			continue
		}
		for _, match := range regexp.MustCompile("(?m)(?:^|`)make ([a-z]+)").FindAllStringSubmatch(text, -1) {
			if !strings.Contains(texts["Makefile"], "\n"+match[1]+":") {
				t.Errorf("%s says make %s, which there isn't", name, match[1])
			}
		}
	}
}
