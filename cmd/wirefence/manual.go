//go:build manual

package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/internal/manual/manpages"
)

// manualCommands write the manual: `go run -tags manual ./cmd/wirefence manual`.
func manualCommands() []*cobra.Command {
	var man, page string
	c := &cobra.Command{
		Use: "manual", Hidden: true, Short: "Write manual pages, or the reference of the command line",
		Args: exactly(0, "no arguments"), Annotations: map[string]string{anyEnvironment: "yes"},
		RunE: func(c *cobra.Command, _ []string) error {
			if man != "" {
				date, _ := time.Parse(time.RFC3339, thisBuild().CommitDate) // which may be unknown
				return manpages.Write(c.Root(), man, thisBuild().Version, date)
			}
			text, err := reference(c.Root()).Markdown()
			if err != nil {
				return err
			}
			return os.WriteFile(page, []byte(text), 0o644)
		},
	}
	c.Flags().StringVar(&man, "man", "", "folder for manual pages")
	c.Flags().StringVar(&page, "reference", "", "file for the reference, in Markdown")
	c.MarkFlagsOneRequired("man", "reference")
	return []*cobra.Command{c}
}
