// Command mutations takes each rule out of the proxy's core, or with -schema out of the schema's
// functions, runs the tests of the packages it is given, and prints which of them fail: a test that is
// alone in failing for a rule can't be spared, and one that fails for none needs another reason.
//
//	go run ./proxy/internal/rules/mutations -rules COMMIT ./proxy/internal/...
//	go run ./proxy/internal/rules/mutations -schema -rules forg ./migrations ./lockclient/postgres
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/wirefence/wirefence/proxy/internal/rules"
)

func main() {
	schema := flag.Bool("schema", false, "take out rules of the schema's functions")
	chosen := flag.String("rules", ".", "which rules to take out, as a regular expression")
	run := flag.String("run", ".", "which tests to run, as go test takes it")
	timeout := flag.Duration("timeout", 0, "how long the tests of a package may take; 0 for go's default")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	args := []string{"-short", "-run", *run}
	if *timeout > 0 {
		args = append(args, "-timeout", timeout.String())
	}
	all := rules.All
	if *schema {
		all = slices.Insert(slices.Clone(rules.Schema), 0, rules.Text)
	}
	if err := mutate(ctx, os.Stdout, all, regexp.MustCompile(*chosen), args, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "mutations:", err)
		os.Exit(1)
	}
}

// mutate runs the packages' tests with every rule, and then without each that is chosen. What fails
// by another text alone doesn't count.
func mutate(ctx context.Context, out io.Writer, all []rules.Rule, chosen *regexp.Regexp, args, packages []string) error {
	if len(packages) == 0 {
		return errors.New("expected packages")
	}
	root, err := rules.ModuleRoot()
	if err != nil {
		return err
	}
	whole, err := test(ctx, args, packages)
	if err != nil {
		return err
	}
	if already := slices.Sorted(maps.Keys(whole.failed)); len(already) > 0 {
		return fmt.Errorf("these fail with every rule: %s", strings.Join(already, " "))
	}
	var without []mutation
	byText := map[string]bool{}
	for _, rule := range all {
		text := rule.Name == rules.Text.Name
		if !text && !chosen.MatchString(rule.Name) {
			continue
		}
		dir, err := os.MkdirTemp("", "mutation")
		if err != nil {
			return err
		}
		overlay, err := rule.Overlay(root, dir)
		var got outcome
		if err == nil {
			got, err = test(ctx, append([]string{"-overlay", overlay}, args...), packages)
		}
		if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
			return fmt.Errorf("without %q: %w", rule.Name, err)
		}
		if text {
			byText = got.failed
			continue
		}
		maps.DeleteFunc(got.failed, func(name string, _ bool) bool { return byText[name] })
		without = append(without, mutation{rule.Name, got.failed})
		fmt.Fprintf(os.Stderr, "without %q: %s\n", rule.Name, strings.Join(slices.Sorted(maps.Keys(got.failed)), " "))
	}
	write(out, without, slices.Sorted(maps.Keys(whole.ran)))
	return nil
}

// outcome is what go test reports of tests, each by its package's last element and its name.
type outcome struct{ ran, failed map[string]bool }

// mutation is a rule, and the tests that fail without it.
type mutation struct {
	rule   string
	failed map[string]bool
}

// test runs go test. That tests fail is no error; that a package doesn't build is one.
func test(ctx context.Context, args, packages []string) (outcome, error) {
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"test", "-json", "-vet=off"}, args, packages)...)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) || ctx.Err() != nil {
		return outcome{}, cmp.Or(ctx.Err(), err)
	}
	return read(bytes.NewReader(text))
}

// read reads what go test -json writes. A package that fails without a failed test, as by its
// timeout or a panic, counts as the test that ran last.
func read(r io.Reader) (outcome, error) {
	got := outcome{map[string]bool{}, map[string]bool{}}
	running, failed := map[string]string{}, map[string]bool{}
	for lines := json.NewDecoder(r); ; {
		var e struct{ Action, Package, Test, FailedBuild string }
		if err := lines.Decode(&e); errors.Is(err, io.EOF) {
			return got, nil
		} else if err != nil {
			return got, err
		}
		name, _, _ := strings.Cut(e.Test, "/")
		name = path.Base(e.Package) + "." + name
		switch {
		case e.FailedBuild != "":
			return got, fmt.Errorf("%s doesn't build", e.Package)
		case e.Test != "" && e.Action == "run":
			got.ran[name], running[e.Package] = true, name
		case e.Test != "" && e.Action == "fail":
			got.failed[name], failed[e.Package] = true, true
		case e.Action == "fail" && !failed[e.Package]:
			got.failed[cmp.Or(running[e.Package], name)] = true
		}
	}
}

// write writes the table: rules by number, and a row for each test.
func write(out io.Writer, without []mutation, tests []string) {
	width := 0
	for _, name := range tests {
		width = max(width, len(name))
	}
	header := []string{"", ""}
	for i, m := range without {
		fmt.Fprintf(out, "%3d  %-60s %d\n", i+1, m.rule, len(m.failed))
		header[0] += fmt.Sprint((i + 1) / 10)
		header[1] += fmt.Sprint((i + 1) % 10)
	}
	fmt.Fprintf(out, "\n%*s  %s\n%*s  %s\n", width, "", header[0], width, "x fails, ! fails alone", header[1])
	var none []string
	for _, name := range tests {
		row := ""
		for _, m := range without {
			switch {
			case !m.failed[name]:
				row += "."
			case len(m.failed) == 1:
				row += "!"
			default:
				row += "x"
			}
		}
		if strings.Trim(row, ".") == "" {
			none = append(none, name)
			continue
		}
		fmt.Fprintf(out, "%-*s  %s\n", width, name, row)
	}
	fmt.Fprintf(out, "\n%d of %d tests fail for no rule:\n%s\n", len(none), len(tests), strings.Join(none, "\n"))
}
