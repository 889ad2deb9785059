package manual

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Widths of the help. Flags whose names are longer than the column have their text below.
const (
	nameColumn  = 32
	textMinimum = 40
)

// PrintHelp prints what a command does and how it is used, in lines of at most so many
// columns where words allow.
func PrintHelp(w io.Writer, c *cobra.Command, width int) error {
	var b strings.Builder
	for _, p := range paragraphs(c) {
		if !p.asIs {
			p.text = strings.Join(wrap(p.text, width), "\n")
		}
		b.WriteString(p.text + "\n\n")
	}
	usage(&b, c)
	if c.Example != "" {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", c.Example)
	}
	commands(&b, c)
	for _, g := range grouped(c) {
		fmt.Fprintf(&b, "\n%s:\n", g.Title)
		for _, f := range g.Flags {
			printFlag(&b, f, width)
		}
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n`%s COMMAND --help` tells more of a command.\n", c.CommandPath())
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// paragraph is a part of what is said of a command.
type paragraph struct {
	text string
	asIs bool // it is laid out already: what one types, or a list
}

func paragraphs(c *cobra.Command) (all []paragraph) {
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	for part := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		part = strings.Trim(part, "\n")
		asIs := strings.Contains("\n"+part, "\n ") || strings.Contains("\n"+part, "\n\t")
		all = append(all, paragraph{part, asIs})
	}
	return all
}

func usage(b *strings.Builder, c *cobra.Command) {
	b.WriteString("Usage:\n")
	if c.Runnable() && !c.HasAvailableSubCommands() {
		fmt.Fprintf(b, "  %s\n", usageLine(c))
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(b, "  %s COMMAND\n", c.CommandPath())
	}
}

// usageLine is the command with its arguments, flags first: behind them they could be
// another program's.
func usageLine(c *cobra.Command) string {
	words := strings.SplitN(c.Use, " ", 2)
	line := c.CommandPath() + " [flags]"
	if len(words) > 1 {
		line += " " + words[1]
	}
	return line
}

// commands lists those below by their groups.
func commands(b *strings.Builder, c *cobra.Command) {
	widest := 0
	for _, below := range c.Commands() {
		widest = max(widest, len(below.Name()))
	}
	list := func(title, id string) {
		heading := "\n" + title + ":\n"
		for _, below := range c.Commands() {
			if below.GroupID != id || !below.IsAvailableCommand() {
				continue
			}
			fmt.Fprintf(b, "%s  %-*s  %s\n", heading, widest, below.Name(), below.Short)
			heading = ""
		}
	}
	for _, g := range c.Groups() {
		list(g.Title, g.ID)
	}
	others := "Commands"
	if len(c.Groups()) > 0 {
		others = "Others"
	}
	list(others, "")
}

func printFlag(b *strings.Builder, f *pflag.Flag, width int) {
	label := "  " + name(f)
	if f.Shorthand == "" {
		label = "      " + name(f)
	}
	lines := wrap(about(f), max(width-nameColumn-2, textMinimum))
	if len(label) > nameColumn {
		fmt.Fprintln(b, label)
		label = ""
	}
	for _, line := range lines {
		fmt.Fprintf(b, "%-*s  %s\n", nameColumn, label, line)
		label = ""
	}
}

// about is a flag's text with its default and its variable.
func about(f *pflag.Flag) string {
	text := f.Usage
	if value := fallback(f); value != "" {
		text += fmt.Sprintf(" (default %s)", value)
	}
	if v := Variable(f); v != "" {
		text += " [" + v + "]"
	}
	return text
}

// wrap breaks a text between words. A word that is longer than a line has its own.
func wrap(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case len([]rune(line))+1+len([]rune(word)) <= width:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	return append(lines, line)
}
