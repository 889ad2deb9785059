package manual

import (
	"strings"

	"github.com/spf13/cobra"
)

// Reference is all that there is to tell of a command line. The maps' keys are commands'
// paths, as in "wirefence resource show".
type Reference struct {
	Root    *cobra.Command
	Main    *cobra.Command // whose settings are listed first
	Intro   string         // Markdown, behind the title of the reference
	Outputs map[string][]Output
	// Meanings are those of fields whose structs have no tag "says": by the struct's
	// type and the field's name in JSON, as in "fence.Event.id".
	Meanings map[string]string
}

// Output is what a command prints as JSON.
type Output struct {
	When  string // a condition, as in "with --guards"; "" if it is always so
	Value any    // whose type tells the fields
}

// all are the commands that are shown, those below a command behind it.
func (r *Reference) all() (found []*cobra.Command) {
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		found = append(found, c)
		for _, below := range c.Commands() {
			if below.IsAvailableCommand() && below.Name() != "help" {
				visit(below)
			}
		}
	}
	visit(r.Root)
	return found
}

// short is a command's sentence.
func short(c *cobra.Command) string { return strings.TrimSuffix(c.Short, ".") + "." }
