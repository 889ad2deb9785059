// Package manpages writes the manual pages of a command line. Only the build with the tag
// manual imports it, so that no other binary contains what makes the pages.
package manpages

import (
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Write writes a page of section 1 for each command into a folder. The pages name the
// release that they belong to, and its date: a release that is built twice has the same pages.
func Write(root *cobra.Command, folder, release string, date time.Time) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	root.DisableAutoGenTag = true
	return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "wirefence " + release, Manual: "Wirefence", Date: &date}, folder)
}
