//go:build manual

package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

// manualCommands write the manual: `go run -tags manual ./cmd/wirefence manual`.
func manualCommands() []*cobra.Command {
	var man, page string
	c := &cobra.Command{
		Use: "manual", Hidden: true, Short: "Write manual pages, and the reference of the command line",
		Args: exactly(0, "no arguments"), Annotations: map[string]string{anyEnvironment: "yes"},
		RunE: func(c *cobra.Command, _ []string) error {
			r := reference(c.Root())
			if man != "" {
				if err := writeMan(man, r.Man(thisBuild().Version)); err != nil {
					return err
				}
			}
			if page == "" {
				return nil
			}
			text, err := r.Markdown()
			if err != nil {
				return err
			}
			return os.WriteFile(page, []byte(text), 0o644)
		},
	}
	c.Flags().StringVar(&man, "man", "", "folder for manual pages")
	c.Flags().StringVar(&page, "reference", "", "file for the reference, in Markdown")
	return []*cobra.Command{c}
}

func writeMan(folder string, pages map[string]string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for name, text := range pages {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("write a manual page: %w", err)
		}
	}
	return nil
}
