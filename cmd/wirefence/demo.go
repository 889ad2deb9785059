package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/internal/demo"
	"github.com/wirefence/wirefence/internal/servers"
)

func demoCommand() *cobra.Command {
	var keep bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "See a zombie's write refused, on servers that are started for it",
		Long: `Starts a PostgreSQL, a Redis and a proxy of its own, and lets two workers
fight over a lease: once without Wirefence, where the former holder overwrites
its successor's work, and once with it, where PostgreSQL refuses. It takes seconds.

Exit status:

    0  both rounds ended like that
    1  they didn't, or a server is missing
    2  wrong usage`,
		Args:        exactly(0, "no arguments"),
		Annotations: map[string]string{anyEnvironment: "yes"},
		RunE: func(c *cobra.Command, _ []string) error {
			executable, err := os.Executable()
			if err != nil {
				return err
			}
			ctx, stop := isolate(c.Context())
			defer stop()
			return demo.Run(ctx, demo.Options{
				Executable: executable, Command: os.Args[0], Output: os.Stdout, Colour: colourful(os.Stdout), Keep: keep,
			})
		},
	}
	c.Flags().BoolVar(&keep, "keep", false, "leave servers and proxy running after the play, and print how to reach them, until Ctrl-C")
	c.AddCommand(&cobra.Command{
		Use: "worker CONFIGURATION", Hidden: true, Annotations: map[string]string{anyEnvironment: "yes"}, Short: "A worker of the play",
		Args: exactly(1, "a configuration"),
		RunE: func(c *cobra.Command, args []string) error { return demo.Work(c.Context(), args[0], os.Stdout) },
	})
	return c
}

// isolate removes settings that are meant for other servers from the environment. Its
// context also ends at signals that main doesn't handle and that would kill the process: a
// closed terminal, or a closed pipe behind the timeline.
func isolate(ctx context.Context) (context.Context, context.CancelFunc) {
	servers.ClearSettings()
	ends := []os.Signal{syscall.SIGPIPE}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		ends = append(ends, syscall.SIGHUP)
	}
	return signal.NotifyContext(ctx, ends...)
}

// colourful reports whether colours would be seen, and are wanted.
func colourful(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
