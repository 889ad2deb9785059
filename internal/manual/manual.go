// Package manual tells of a command line: the help that a command prints, the reference
// docs/cli.md, and manual pages. All three are made of the same tree of commands and flags.
// It imports nothing of the module.
package manual

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Annotations of a flag.
const (
	groupOf    = "manual.group"
	variableOf = "manual.variable"
)

// groups are the headings of flags in their order. Flags of none are the first.
var groups = []string{
	"", "Connections", "Fencing", "Leases", "Limits and timeouts", "TLS and authentication", "Observability",
}

// ownGroup is the heading of flags that have none: the arguments of one invocation.
const ownGroup = "Flags"

// Describe says under which heading a flag stands, "" for the first, and over which
// variable it wins, "" for none.
func Describe(f *pflag.Flag, group, variable string) {
	if !slices.Contains(groups, group) {
		panic("manual: there is no heading " + group)
	}
	f.Annotations = map[string][]string{groupOf: {group}, variableOf: {variable}}
}

// Variable is the variable over which a flag wins, "" if there is none.
func Variable(f *pflag.Flag) string { return annotation(f, variableOf) }

func annotation(f *pflag.Flag, name string) string {
	if all := f.Annotations[name]; len(all) > 0 {
		return all[0]
	}
	return ""
}

// group is a heading with its flags.
type group struct {
	Title string
	Flags []*pflag.Flag
}

// grouped returns the flags of a command that are shown.
func grouped(c *cobra.Command) (all []group) {
	c.InitDefaultHelpFlag()
	c.Flags().Lookup("help").Usage = "print this help"
	for _, name := range groups {
		g := group{Title: name}
		if name == "" {
			g.Title = ownGroup
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && annotation(f, groupOf) == name {
				g.Flags = append(g.Flags, f)
			}
		})
		if len(g.Flags) > 0 {
			all = append(all, g)
		}
	}
	return all
}

// name is a flag with its letter and its type, as in "-o, --output text|json".
func name(f *pflag.Flag) string {
	text := "--" + f.Name
	if f.Shorthand != "" {
		text = "-" + f.Shorthand + ", " + text
	}
	if kind := f.Value.Type(); kind != "bool" {
		text += " " + kind
	}
	return text
}

// fallback is the default, "" where there is none to tell.
func fallback(f *pflag.Flag) string {
	if f.Value.Type() == "bool" && f.DefValue == "false" {
		return ""
	}
	return f.DefValue
}

// Alternatives is "a, b or c" for "a|b|c".
func Alternatives(of string) string {
	all := strings.Split(of, "|")
	if len(all) == 1 {
		return of
	}
	return strings.Join(all[:len(all)-1], ", ") + " or " + all[len(all)-1]
}
