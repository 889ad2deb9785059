//go:build manual

package main

import (
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/internal/manual/manpages"
)

// manualCommands write the manual: `go run -tags manual ./cmd/wirefence manual`.
func manualCommands() []*cobra.Command {
	var man, docs string
	c := &cobra.Command{
		Use: "manual", Hidden: true, Short: "Write manual pages, or the reference of the command line",
		Args: exactly(0, "no arguments"), Annotations: map[string]string{anyEnvironment: "yes"},
		RunE: func(c *cobra.Command, _ []string) error {
			if man != "" {
				date, _ := time.Parse(time.RFC3339, thisBuild().CommitDate) // which may be unknown
				return manpages.Write(c.Root(), man, thisBuild().Version, date)
			}
			pages, err := docPages(c.Root(), docs)
			for path, text := range pages {
				err = errors.Join(err, os.WriteFile(path, []byte(text), 0o644))
			}
			return err
		},
	}
	c.Flags().StringVar(&man, "man", "", "folder for manual pages")
	c.Flags().StringVar(&docs, "docs", "", "folder of the reference, whose pages on commands and settings are brought up to date")
	c.MarkFlagsOneRequired("man", "docs")
	return []*cobra.Command{c}
}
