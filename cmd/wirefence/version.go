package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/migrations"
)

// The linker sets these. A binary of a plain `go build` or `go install` has them from
// what Go records of the module and the checkout.
var (
	version    = ""
	commit     = ""
	commitDate = ""
)

// unknown is what stands for a commit that neither the linker nor Go has recorded.
const unknown = "unknown"

// build is what `wirefence version` prints.
type build struct {
	Version    string `json:"version" says:"the release, or what git describes the checkout as; dev if neither is known"`
	Commit     string `json:"commit" says:"the commit that was built, or unknown"`
	CommitDate string `json:"commit_date" says:"the commit's time, RFC 3339, or unknown"`
	Schema     int    `json:"schema" says:"the version of the database schema that this binary needs"`
	Go         string `json:"go" says:"the version of Go"`
	OS         string `json:"os" says:"the operating system, in Go's terms"`
	Arch       string `json:"arch" says:"the architecture, in Go's terms"`
}

func thisBuild() build {
	info, _ := debug.ReadBuildInfo()
	return buildOf(info)
}

// buildOf fills in from what Go has recorded, which may be nil, what the linker hasn't set.
func buildOf(info *debug.BuildInfo) build {
	b := build{Version: version, Commit: commit, CommitDate: commitDate, Schema: migrations.Version(),
		Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if info != nil {
		if info.Main.Version != "(devel)" {
			b.Version = cmp.Or(b.Version, info.Main.Version)
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = cmp.Or(b.Commit, s.Value)
			case "vcs.time":
				b.CommitDate = cmp.Or(b.CommitDate, s.Value)
			}
		}
	}
	b.Version, b.Commit, b.CommitDate = cmp.Or(b.Version, "dev"), cmp.Or(b.Commit, unknown), cmp.Or(b.CommitDate, unknown)
	return b
}

func (b build) print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "wirefence %s, commit %.12s of %s, schema %d, %s %s/%s\n", b.Version, b.Commit, b.CommitDate, b.Schema, b.Go, b.OS, b.Arch)
	return err
}

func versionCommand() *cobra.Command {
	return withSettings(&cobra.Command{
		Use:         "version",
		Short:       "Print the version of the binary and of the schema that it needs",
		Args:        exactly(0, "no arguments"),
		Annotations: map[string]string{anyEnvironment: "yes"},
	}, func(c *cobra.Command, cfg OutputSettings, _ []string) error {
		return cfg.give(c.OutOrStdout(), answer{thisBuild(), thisBuild().print})
	})
}
