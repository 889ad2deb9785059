package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/wirefence/wirefence/internal/manual"
)

// Commands stand in groups in the help of the root.
const (
	groupRun     = "run"
	groupSetUp   = "set-up"
	groupOperate = "operate"
	groupOther   = "other"
)

var commandGroups = []*cobra.Group{
	{ID: groupRun, Title: "Run"}, {ID: groupSetUp, Title: "Set up a database"}, {ID: groupOperate, Title: "Look and step in"},
	{ID: groupOther, Title: "Others"},
}

// in puts commands into a group.
func in(group string, all ...*cobra.Command) []*cobra.Command {
	for _, c := range all {
		c.GroupID = group
	}
	return all
}

// printHelp has what cobra's own help has, with flags under headings: those of the proxy fill
// two screens.
func printHelp(c *cobra.Command, _ []string) {
	w, usage := c.OutOrStdout(), c.UseLine()
	if c.HasAvailableSubCommands() {
		usage = c.CommandPath() + " COMMAND"
	}
	fmt.Fprintf(w, "%s\n\nUsage:\n  %s\n", cmp.Or(c.Long, c.Short+"."), usage)
	if c.HasExample() {
		fmt.Fprintf(w, "\nExamples:\n%s\n", c.Example)
	}
	for _, g := range append(c.Groups(), &cobra.Group{Title: "Commands"}) {
		printCommands(w, c, g)
	}
	for _, g := range manual.Grouped(c) {
		fmt.Fprintf(w, "\n%s:\n%s", g.Title, g.Flags.FlagUsagesWrapped(widthOf(w)))
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(w, "\n`%s COMMAND --help` tells more of a command.\n", c.CommandPath())
	}
}

// takenForHelp reports whether the -h that printed the help may be another command's, to whom
// status 0 would say that it ran: wirefence lock orders psql -h db.
func takenForHelp(c *cobra.Command) bool {
	help := c.Flags().Lookup("help")
	return runsCommand(c) && help != nil && help.Changed && c.Flags().NArg() > 1 && c.ArgsLenAtDash() < 0
}

// runsCommand reports whether a command runs another.
func runsCommand(c *cobra.Command) bool { return strings.Contains(c.Use, "-- COMMAND") }

func printCommands(w io.Writer, c *cobra.Command, g *cobra.Group) {
	heading := "\n" + g.Title + ":\n"
	for _, below := range c.Commands() {
		if below.GroupID == g.ID && below.IsAvailableCommand() {
			fmt.Fprintf(w, "%s  %-*s %s\n", heading, below.NamePadding(), below.Name(), below.Short)
			heading = ""
		}
	}
}

// helpWidth is the help's where its reader is no terminal.
const helpWidth = 100

// widthOf is the width of a terminal.
func widthOf(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if width := columns(f); width > 0 {
			return width
		}
	}
	return helpWidth
}

// columns is the width of a terminal, -1 if it is none.
func columns(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return -1
	}
	return int(size.Col)
}
