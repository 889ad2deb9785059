package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/wirefence/wirefence/internal/manual"
)

// anyEnvironment is the annotation of a command that reads no settings.
const anyEnvironment = "any environment"

// readsNoSettings reports whether a command works with any environment.
func readsNoSettings(c *cobra.Command) bool {
	for at := c; at != nil; at = at.Parent() {
		if at.Annotations[anyEnvironment] != "" || at.Name() == cobra.ShellCompRequestCmd || at.Name() == "help" {
			return true
		}
	}
	return c.Flags().Changed("version") && !c.HasParent()
}

// otherVariables are no command's settings: `wirefence lock` sets the first two for the
// command that it runs, and the last names the folder of servers for the demo and for tests.
var otherVariables = []string{"WIREFENCE_TOKEN", "WIREFENCE_FENCE", "WIREFENCE_CACHE"}

// ofServices are the variables that Kubernetes makes for a Service, here one whose name
// begins with wirefence (documentation, "Accessing the Service", and Docker's links).
var ofServices = regexp.MustCompile(`^WIREFENCE_(.*_)?(SERVICE_(HOST|PORT(_.*)?)|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// ofTests begins variables that tests read, and pass on to processes that they start.
const ofTests = "WIREFENCE_TEST_"

// checkVariables refuses an environment with variables that look like settings and are
// none: a misspelt mode or limit would be ignored.
func checkVariables(root *cobra.Command, environment []string) error {
	known, flags := slices.Clone(otherVariables), map[string]bool{}
	collectFlags(root, func(f *pflag.Flag) {
		if flags[f.Name] = true; manual.Variable(f) != "" {
			known = append(known, manual.Variable(f))
		}
	})
	var errs []error
	for _, entry := range environment {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, prefix) || slices.Contains(known, name) || ofServices.MatchString(name) || strings.HasPrefix(name, ofTests) {
			continue
		}
		if flags[flagOf(name)] { // a leftover WIREFENCE_DRY_RUN would otherwise migrate
			errs = append(errs, fmt.Errorf("the environment has %s, which is no setting: --%s is given on the command line only", name, flagOf(name)))
			continue
		}
		errs = append(errs, fmt.Errorf("the environment has %s, which is no setting%s", name, suggestion(name, known)))
	}
	return errors.Join(errs...)
}

// collectFlags passes the flags of all commands to each.
func collectFlags(c *cobra.Command, each func(*pflag.Flag)) {
	c.Flags().VisitAll(each)
	for _, below := range c.Commands() {
		collectFlags(below, each)
	}
}

// suggestion names the known word with the most similar spelling, if there is one.
func suggestion(name string, known []string) string {
	names := &cobra.Command{}
	for _, k := range known {
		names.AddCommand(&cobra.Command{Use: k, Run: func(*cobra.Command, []string) {}})
	}
	for range min(3, len(name)/2) { // letters that differ
		names.SuggestionsMinimumDistance++
		if alike := names.SuggestionsFor(name); len(alike) > 0 {
			return "; " + alike[0] + " is one"
		}
	}
	return ""
}

// knownCommand refuses an argument where one of c's commands is expected.
func knownCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var known []string
	for _, below := range c.Commands() {
		if below.IsAvailableCommand() {
			known = append(known, below.Name())
		}
	}
	return usageError{fmt.Errorf("unknown command %q%s", args[0], suggestion(args[0], known))}
}

// suggestFlag adds the flag with the most similar spelling to an error about an unknown one.
func suggestFlag(c *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	if runsCommand(c) && c.Flags().NArg() > 0 {
		return fmt.Errorf("%w; if it is a flag of the command to run, put -- before that", err)
	}
	if unknown.GetSpecifiedShortnames() != "" {
		return err
	}
	var known []string
	c.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, "--"+f.Name) })
	return fmt.Errorf("%w%s", err, suggestion("--"+unknown.GetSpecifiedName(), known))
}
