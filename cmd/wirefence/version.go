package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/migrations"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:         "version",
		Short:       "Print the version of the binary and of the schema that it needs",
		Args:        exactly(0, "no arguments"),
		Annotations: map[string]string{anyEnvironment: "yes"},
		Run: func(c *cobra.Command, _ []string) {
			fmt.Fprintf(c.OutOrStdout(), "wirefence %s, schema %d, %s %s/%s\n", version, migrations.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
		},
	}
}
