package manual

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Man are manual pages of section 1, a page for each command, by the names of their files.
// They name the release that they belong to.
func (r *Reference) Man(release string) map[string]string {
	pages := map[string]string{}
	for _, c := range r.all() {
		pages[pageName(c)+".1"] = r.page(c, release)
	}
	return pages
}

func pageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

func (r *Reference) page(c *cobra.Command, release string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %q 1 \"\" %q \"Wirefence\"\n", strings.ToUpper(pageName(c)), "wirefence "+release)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(pageName(c)), roff(strings.TrimSuffix(c.Short, ".")))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(strings.TrimSpace(usageOf(c))))
	b.WriteString(".SH DESCRIPTION\n")
	for i, p := range paragraphs(c) {
		if i > 0 {
			b.WriteString(".PP\n")
		}
		literal(&b, p.text, p.asIs)
	}
	commandList(&b, c)
	for _, g := range grouped(c) {
		fmt.Fprintf(&b, ".SH %s\n", roff(strings.ToUpper(heading(g.Title))))
		for _, f := range g.Flags {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(name(f)), roff(about(f)))
		}
	}
	if c.Example != "" {
		b.WriteString(".SH EXAMPLES\n")
		literal(&b, c.Example, true)
	}
	b.WriteString(".SH EXIT STATUS\n")
	for _, s := range r.statuses(c) {
		fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(s.Code), roff(strings.ReplaceAll(s.Meaning, "`", "")))
	}
	r.seeAlso(&b, c)
	return b.String()
}

func heading(title string) string {
	if title == ownGroup {
		return "Options"
	}
	return title
}

func usageOf(c *cobra.Command) string {
	var b strings.Builder
	usage(&b, c)
	_, line, _ := strings.Cut(b.String(), "\n")
	return line
}

func commandList(b *strings.Builder, c *cobra.Command) {
	title := ".SH COMMANDS\n"
	for _, below := range c.Commands() {
		if below.IsAvailableCommand() && below.Name() != "help" {
			fmt.Fprintf(b, "%s.TP\n.BR %s (1)\n%s\n", title, roff(pageName(below)), roff(short(below)))
			title = ""
		}
	}
}

func (r *Reference) seeAlso(b *strings.Builder, c *cobra.Command) {
	if !c.HasParent() {
		return
	}
	fmt.Fprintf(b, ".SH SEE ALSO\n.BR %s (1)\n", roff(pageName(c.Parent())))
}

// literal writes text, as it is laid out or in filled lines.
func literal(b *strings.Builder, text string, asIs bool) {
	if asIs {
		b.WriteString(".nf\n" + roff(text) + "\n.fi\n")
		return
	}
	b.WriteString(roff(text) + "\n")
}

// roff escapes a text: a backslash and what a minus sign is for a copied command, and dots
// and quotes that would begin a request.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
