//go:build !manual

package main

import "github.com/spf13/cobra"

// manualCommands are in a binary that writes the manual, which isn't the one that is
// shipped.
func manualCommands() []*cobra.Command { return nil }
