package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/internal/manual"
)

// Commands stand in groups in the help of the root.
const (
	groupRun     = "run"
	groupSetUp   = "set-up"
	groupOperate = "operate"
)

var commandGroups = []*cobra.Group{
	{ID: groupRun, Title: "Run"}, {ID: groupSetUp, Title: "Set up a database"}, {ID: groupOperate, Title: "Look and step in"},
}

// in puts commands into a group.
func in(group string, all ...*cobra.Command) []*cobra.Command {
	for _, c := range all {
		c.GroupID = group
	}
	return all
}

// helpWidth is the help's where its reader is no terminal.
const helpWidth = 100

func printHelp(c *cobra.Command, _ []string) {
	_ = manual.PrintHelp(c.OutOrStdout(), c, widthOf(c.OutOrStdout()))
}

// widthOf is the width of a terminal.
func widthOf(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if width := columns(f); width > 0 {
			return width
		}
	}
	return helpWidth
}
