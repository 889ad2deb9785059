package manual

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Markdown is the reference as one page.
func (r *Reference) Markdown() (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "# Commands\n\n%s\n\n", strings.TrimSpace(r.Intro))
	r.contents(&b)
	for _, c := range r.all()[1:] {
		if err := r.section(&b, c); err != nil {
			return "", err
		}
	}
	return strings.TrimRight(b.String(), "\n") + "\n", nil
}

func (r *Reference) contents(b *strings.Builder) {
	b.WriteString("| command | does |\n|---|---|\n")
	for _, c := range r.all()[1:] {
		path := c.CommandPath()
		fmt.Fprintf(b, "| [`%s`](#%s) | %s |\n", path, strings.ReplaceAll(path, " ", "-"), inCell(short(c)))
	}
	b.WriteString("\n## Exit statuses\n\nOf every command, unless it says otherwise:\n\n")
	statusTable(b, r.Statuses[r.Root.CommandPath()])
}

func statusTable(b *strings.Builder, all []Status) {
	b.WriteString("| status | means |\n|---|---|\n")
	for _, s := range all {
		fmt.Fprintf(b, "| %s | %s |\n", s.Code, inCell(s.Meaning))
	}
	b.WriteString("\n")
}

func (r *Reference) section(b *strings.Builder, c *cobra.Command) error {
	path := c.CommandPath()
	fmt.Fprintf(b, "## %s\n\n```\n%s\n```\n\n", path, usageLine(c))
	for _, p := range paragraphs(c) {
		if p.asIs {
			p.text = "```\n" + p.text + "\n```"
		}
		b.WriteString(p.text + "\n\n")
	}
	if c.Example != "" {
		fmt.Fprintf(b, "```sh\n%s\n```\n\n", strings.TrimSpace(strings.ReplaceAll("\n"+c.Example, "\n  ", "\n")))
	}
	flagTable(b, c)
	if own := r.Statuses[path]; len(own) > 0 {
		statusTable(b, own)
	}
	for _, o := range r.Outputs[path] {
		if err := r.fieldTable(b, o); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

func flagTable(b *strings.Builder, c *cobra.Command) {
	heading := "| flag | default | |\n|---|---|---|\n"
	for _, g := range grouped(c) {
		for _, f := range g.Flags {
			if f.Name == "help" {
				continue
			}
			text := f.Usage
			if v := Variable(f); v != "" {
				text += ". `" + v + "`"
			}
			value := fallback(f)
			if value != "" {
				value = "`" + value + "`"
			}
			fmt.Fprintf(b, "%s| `%s` | %s | %s |\n", heading, inCell(name(f)), inCell(value), inCell(text))
			heading = ""
		}
	}
	if heading == "" {
		b.WriteString("\n")
	}
}

func (r *Reference) fieldTable(b *strings.Builder, o Output) error {
	fields, err := r.Fields(o)
	if err != nil {
		return err
	}
	condition := ""
	if o.When != "" {
		condition = " " + o.When
	}
	what := "an object"
	if len(fields) > 0 && strings.HasPrefix(fields[0].Path, "[]") {
		what = "a list of objects"
	}
	fmt.Fprintf(b, "With `--output json`%s it prints %s:\n\n| field | type | |\n|---|---|---|\n", condition, what)
	for _, f := range fields {
		kind := f.Type
		if f.Absent {
			kind += ", or absent"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", strings.TrimPrefix(f.Path, "[]."), kind, inCell(f.Meaning))
	}
	b.WriteString("\n")
	return nil
}

// inCell keeps a text from ending its cell.
func inCell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
