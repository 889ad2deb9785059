package manual

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// settingsPage has what Settings returns, beside the page of Markdown.
const settingsPage = "settings.md"

// setting is a flag with a variable, as the first command has it that takes it.
type setting struct {
	*pflag.Flag
	group string
	file  bool     // a file may hold its value
	of    []string // commands
}

// settings are those of the main command in the order of its help, then those of others.
func (r *Reference) settings() (all []*setting) {
	for _, c := range append([]*cobra.Command{r.Main}, r.all()...) {
		for _, g := range Grouped(c) {
			g.Flags.VisitAll(func(f *pflag.Flag) {
				if Variable(f) == "" || namesFile(c, f) {
					return
				}
				s := find(all, f)
				if s == nil {
					s = &setting{Flag: f, group: g.Title, file: c.Flags().Lookup(f.Name+fileFlag) != nil}
					all = append(all, s)
				}
				s.of = append(s.of, strings.TrimPrefix(c.CommandPath(), r.Root.Name()+" "))
			})
		}
	}
	return all
}

func find(all []*setting, f *pflag.Flag) *setting {
	at := slices.IndexFunc(all, func(s *setting) bool { return Variable(s.Flag) == Variable(f) })
	if at < 0 {
		return nil
	}
	return all[at]
}

// fileFlag ends the name of a flag that names a file with the value of another.
const fileFlag = "-file"

func namesFile(c *cobra.Command, f *pflag.Flag) bool {
	value, is := strings.CutSuffix(f.Name, fileFlag)
	return is && c.Flags().Lookup(value) != nil
}

// Settings are tables of the settings in Markdown: those of the main command under the
// headings of its help, and those that only others have.
func (r *Reference) Settings() string {
	var b strings.Builder
	title := ""
	for _, s := range r.settings() {
		meaning, under := text(s.Flag), "#### "+s.group
		if s.of[0] != r.Main.Name() {
			under = "### Settings of other commands"
			meaning = "for `" + strings.Join(s.of, "`, `") + "`: " + meaning
		}
		if title != under {
			title = under
			fmt.Fprintf(&b, "\n%s\n\n| variable | default | meaning |\n|---|---|---|\n", title)
		}
		meaning, required := strings.CutSuffix(meaning, " (required)")
		if s.file {
			meaning += ". [In a file](#passwords-in-files): `" + Variable(s.Flag) + "_FILE`"
		}
		value := fallback(s.Flag)
		switch {
		case required:
			value = "required"
		case s.DefValue == "false":
			value = "`false`"
		case value == "":
			value = "none"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", Variable(s.Flag), value, inCell(meaning))
	}
	return b.String()
}

// flags lists the flags of a command. Those that mean what the table of settings says are only
// named. The intro says what --output does.
func (r *Reference) flags(b *strings.Builder, c *cobra.Command) {
	settings, heading, also := r.settings(), "| flag | default | |\n|---|---|---|\n", []string{}
	for _, g := range Grouped(c) {
		g.Flags.VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" || f.Name == "output" || f.Hidden || namesFile(c, f) {
				return
			}
			meaning := text(f)
			if v := Variable(f); v != "" {
				if s := find(settings, f); text(s.Flag) == meaning && s.DefValue == f.DefValue {
					also = append(also, "`--"+f.Name+"`")
					return
				}
				meaning = strings.ReplaceAll(meaning, "](#", "]("+settingsPage+"#") + ". `" + v + "`"
			}
			fmt.Fprintf(b, "%s| `%s` | %s | %s |\n", heading, inCell(name(f)), fallback(f), inCell(meaning))
			heading = ""
		})
	}
	if heading == "" {
		b.WriteString("\n")
	}
	switch {
	case c == r.Main:
		fmt.Fprintf(b, "It has a flag for each of [its settings](%s#settings).\n\n", settingsPage)
	case len(also) > 0:
		fmt.Fprintf(b, "[Settings](%s#settings): %s.\n\n", settingsPage, strings.Join(also, ", "))
	}
}

// text is the meaning of a flag in Markdown.
func text(f *pflag.Flag) string { return cmp.Or(annotation(f, textOf), f.Usage) }

// fallback is a flag's default, "" where there is none to tell.
func fallback(f *pflag.Flag) string {
	if f.DefValue == "" || f.DefValue == "false" {
		return ""
	}
	return "`" + f.DefValue + "`"
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
