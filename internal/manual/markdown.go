package manual

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Markdown is the reference as one page.
func (r *Reference) Markdown() (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "# Commands\n\n%s\n\n%s\n\n", strings.TrimSpace(r.Intro), r.Root.Long)
	r.contents(&b)
	for _, c := range r.all()[1:] {
		if err := r.section(&b, c); err != nil {
			return "", err
		}
	}
	return strings.TrimRight(b.String(), "\n") + "\n", nil
}

// contents links to the sections, which begin with what their commands do.
func (r *Reference) contents(b *strings.Builder) {
	var links []string
	for _, c := range r.all()[1:] {
		path := c.CommandPath()
		links = append(links, fmt.Sprintf("[`%s`](#%s)", strings.TrimPrefix(path, r.Root.Name()+" "), strings.ReplaceAll(path, " ", "-")))
	}
	fmt.Fprintf(b, "Commands: %s.\n\n", strings.Join(links, ", "))
}

func (r *Reference) section(b *strings.Builder, c *cobra.Command) error {
	path := c.CommandPath()
	fmt.Fprintf(b, "## %s\n\n```\n%s\n```\n\n%s\n\n", path, c.UseLine(), cmp.Or(c.Long, short(c)))
	if c.Example != "" {
		fmt.Fprintf(b, "```sh\n%s\n```\n\n", strings.TrimSpace(strings.ReplaceAll("\n"+c.Example, "\n  ", "\n")))
	}
	r.flags(b, c)
	for _, o := range r.Outputs[path] {
		if err := r.fieldTable(b, o); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
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
	fmt.Fprintf(b, "With `--output json`%s it prints %s:\n\n| field | |\n|---|---|\n", condition, what)
	for _, f := range fields {
		fmt.Fprintf(b, "| %s | %s |\n", f.name(), inCell(f.Meaning))
	}
	b.WriteString("\n")
	return nil
}

// name is a field with its type, which is string if it says none. A question mark is behind
// one that may be absent.
func (f Field) name() string {
	path := strings.TrimPrefix(f.Path, "[].")
	if f.Absent {
		path += "?"
	}
	if f.Type == "string" {
		return "`" + path + "`"
	}
	return "`" + path + "` " + f.Type
}

// inCell keeps a text from ending its cell.
func inCell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
