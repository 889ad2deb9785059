// Package manual makes the reference docs/reference/cli.md of a tree of commands and flags, and holds
// what pflag doesn't know of a flag: its heading and its variable. It imports nothing of the
// module.
package manual

import (
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Annotations of a flag.
const (
	groupOf    = "manual.group"
	variableOf = "manual.variable"
	textOf     = "manual.text"
)

// groups are the headings of flags in their order. Flags of none are the first.
var groups = []string{
	"", "Connections", "Fencing", "Leases", "Limits and timeouts", "TLS and authentication", "Observability",
}

// Describe says under which heading a flag stands, "" for the first, and over which
// variable it wins, "" for none. The usage of the flag is Markdown, with tildes around code;
// Describe keeps that for the docs, and leaves the flag a text for terminals.
func Describe(f *pflag.Flag, group, variable string) {
	if !slices.Contains(groups, group) {
		panic("manual: there is no heading " + group)
	}
	f.Annotations = map[string][]string{groupOf: {group}, variableOf: {variable}, textOf: {strings.ReplaceAll(f.Usage, "~", "`")}}
	f.Usage = strings.ReplaceAll(link.ReplaceAllString(aside.ReplaceAllString(f.Usage, ""), "$1"), "~", "")
	if variable != "" {
		f.Usage += " [" + variable + "]"
	}
}

// link is a link of Markdown, and aside one that only says where there is more.
var (
	link  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	aside = regexp.MustCompile(` \(` + link.String() + `\)`)
)

// Variable is the variable over which a flag wins, "" if there is none.
func Variable(f *pflag.Flag) string { return annotation(f, variableOf) }

func annotation(f *pflag.Flag, name string) string {
	if all := f.Annotations[name]; len(all) > 0 {
		return all[0]
	}
	return ""
}

// Group is a heading with its flags.
type Group struct {
	Title string
	Flags *pflag.FlagSet
}

// Grouped returns the flags of a command by their headings.
func Grouped(c *cobra.Command) (all []Group) {
	c.InitDefaultHelpFlag()
	for _, name := range groups {
		g := Group{Title: name, Flags: pflag.NewFlagSet("", pflag.ContinueOnError)}
		if name == "" {
			g.Title = "Flags"
		}
		g.Flags.SortFlags = false
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if annotation(f, groupOf) == name {
				g.Flags.AddFlag(f)
			}
		})
		if g.Flags.HasAvailableFlags() {
			all = append(all, g)
		}
	}
	return all
}

// Alternatives is "a, b or c" for "a|b|c".
func Alternatives(of string) string {
	all := strings.Split(of, "|")
	if len(all) == 1 {
		return of
	}
	return strings.Join(all[:len(all)-1], ", ") + " or " + all[len(all)-1]
}
