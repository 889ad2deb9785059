package main

import (
	"encoding/json"
	"io"
)

// OutputSettings are those of every command that prints what it has found or done. The
// fields of the JSON are in outputs.go, and docs/reference/cli.md documents them.
type OutputSettings struct {
	Output string `env:"--output" short:"o" oneof:"text|json" envDefault:"text" help:"print for people or for programs"`
}

func (cfg OutputSettings) inJSON() bool { return cfg.Output == "json" }

func printJSON(w io.Writer, value any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(value)
}
