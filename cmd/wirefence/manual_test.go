package main

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/wirefence/wirefence/internal/manual"
)

// The reference is what the commands are. It lists the fields of their JSON, so that one
// that goes or gets another name is noticed here.
func TestTheReferenceIsUpToDate(t *testing.T) {
	t.Parallel()
	pages, err := docPages(newRoot(), "../../docs/reference")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range pages {
		have, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		was, is := strings.Split(string(have), "\n"), strings.Split(want, "\n")
		for n := range max(len(was), len(is)) {
			if n >= len(was) || n >= len(is) || was[n] != is[n] {
				t.Errorf("run `make cli`: %s:%d is not what the commands say", path, n+1)
				break
			}
		}
	}
}

// Every command that prints JSON has its fields in the reference, and the other way round.
func TestOutputsAreInTheReference(t *testing.T) {
	t.Parallel()
	root := newRoot()
	r := reference(root)
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		flag := c.Flags().Lookup("output")
		if documented := len(r.Outputs[c.CommandPath()]) > 0; documented != (flag != nil) {
			t.Errorf("%s: prints JSON: %v, documented: %v", c.CommandPath(), flag != nil, documented)
		}
		if flag != nil && flag.Shorthand != "o" {
			t.Errorf("%s has no -o", c.CommandPath())
		}
		for _, below := range c.Commands() {
			visit(below)
		}
	}
	visit(root)
}

// documented fails the test unless what a command has printed, which has to be something,
// has the fields of the reference and no other. Those of objects within may be missing.
func documented(t *testing.T, path string, which int, printed string) {
	t.Helper()
	r := reference(newRoot())
	fields, err := r.Fields(r.Outputs[path][which])
	if err != nil {
		t.Fatal(err)
	}
	var value any
	if err := json.Unmarshal([]byte(printed), &value); err != nil {
		t.Fatalf("%v:\n%s", err, printed)
	}
	found := map[string]bool{}
	paths(value, "", found)
	if len(found) == 0 {
		t.Errorf("%s has printed no object: %s", path, printed)
	}
	for name := range found {
		if !slices.ContainsFunc(fields, func(f manual.Field) bool {
			return f.Path == name || f.Type == "object" && strings.HasPrefix(name, f.Path+".")
		}) {
			t.Errorf("%s prints %s, which is not documented", path, name)
		}
	}
	for _, f := range fields {
		if within := strings.ContainsAny(strings.TrimPrefix(f.Path, "[]."), ".["); !f.Absent && !within && !found[f.Path] {
			t.Errorf("%s doesn't print %s, which is documented", path, f.Path)
		}
	}
}

// paths collects the names of fields, with their paths as in the reference.
func paths(value any, path string, found map[string]bool) {
	switch v := value.(type) {
	case map[string]any:
		for name, of := range v {
			at := strings.TrimPrefix(path+"."+name, ".")
			found[at] = true
			paths(of, at, found)
		}
	case []any:
		for _, of := range v {
			paths(of, path+"[]", found)
		}
	}
}

// Each flag has a type that says more than "string".
func TestFlagsHaveTypes(t *testing.T) {
	t.Parallel()
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() == "string" || f.Value.Type() == "text" {
				t.Errorf("%s --%s is a %s", c.CommandPath(), f.Name, f.Value.Type())
			}
		})
		for _, below := range c.Commands() {
			visit(below)
		}
	}
	visit(newRoot())
}

// No line of the help is wider than 100 columns, but for a word that is.
func TestHelpIsNarrow(t *testing.T) {
	t.Parallel()
	for _, command := range [][]string{{"proxy"}, {"lock"}, {"resource", "set"}, {"doctor"}, {"history"}, nil} {
		r := wirefence(t, nil, append(command, "--help")...).expect(t, 0)
		for line := range strings.Lines(r.stdout) {
			if len([]rune(line)) > helpWidth+1 && strings.Contains(strings.TrimSpace(line), " ") && !strings.HasPrefix(line, "      --") {
				t.Errorf("%v: a line of %d columns: %s", command, len([]rune(line)), line)
			}
		}
	}
	wirefence(t, nil, "proxy", "--help").says(t, "\nConnections:\n", "\nFencing:\n", "\nLeases:\n", "\nLimits and timeouts:\n", "\nTLS and authentication:\n", "\nObservability:\n",
		"--drain-timeout duration", "--mode enforce|shadow|off", "--max-connections int", "--tls-cert-file file", "--upstream url")
	wirefence(t, nil, "lock", "--help").says(t, "\nUsage:\n  wirefence lock [flags] RESOURCE -- COMMAND [ARG...]\n", "\nExamples:\n  wirefence lock orders -- ./job.sh\n", "\n    75   another holds the lease")
}
