package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// environment are the functions of package os that read settings from it.
var environment = []string{"Getenv", "LookupEnv", "Environ", "ExpandEnv"}

// Only commands, tests and the servers of tests read the environment; libraries
// take an options struct.
func TestLibrariesDontReadTheEnvironment(t *testing.T) {
	t.Parallel()
	seen := 0
	for name, text := range files(t) {
		folder, _, _ := strings.Cut(name, "/")
		if path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") ||
			!slices.Contains([]string{"fence", "migrations", "lockclient", "proxy"}, folder) {
			continue
		}
		seen++
		calls, err := environmentReads(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, call := range calls {
			t.Errorf("%s: %s", name, call)
		}
	}
	if seen == 0 {
		t.Error("no library was found")
	}
}

func TestEnvironmentReadsAreNoticed(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]int{
		"package a\nimport \"os\"\nvar a = os.Getenv(\"A\")":                  1,
		"package a\nimport system \"os\"\nvar a, b = system.LookupEnv(\"A\")": 1,
		"package a\nimport \"os\"\nvar a = os.Args":                           0,
		"package a\nvar os struct{ Getenv func() }\nfunc f() { os.Getenv() }": 0,
	} {
		if calls, err := environmentReads(source); err != nil || len(calls) != want {
			t.Errorf("%q has %q, %v", source, calls, err)
		}
	}
}

// environmentReads returns the selectors of a Go file that read the environment,
// under whatever name it imports os.
func environmentReads(source string) (calls []string, err error) {
	file, err := parser.ParseFile(token.NewFileSet(), "", source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	system := ""
	for _, spec := range file.Imports {
		if imported, _ := strconv.Unquote(spec.Path.Value); imported != "os" {
			continue
		}
		system = "os"
		if spec.Name != nil {
			system = spec.Name.Name
		}
	}
	ast.Inspect(file, func(node ast.Node) bool {
		selector, ok := node.(*ast.SelectorExpr)
		if !ok || system == "" {
			return true
		}
		if from, ok := selector.X.(*ast.Ident); ok && from.Name == system && slices.Contains(environment, selector.Sel.Name) {
			calls = append(calls, system+"."+selector.Sel.Name)
		}
		return true
	})
	return calls, nil
}
