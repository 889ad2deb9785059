package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/effect"
)

// exitRefused is the exit status of `wirefence check` and `wirefence guard` for a fence that
// the database refuses.
const exitRefused = 10

type checkSettings struct {
	DatabaseURL string `env:"WIREFENCE_DATABASE_URL" group:"Connections" file:"anew" help:"connection string of the database in which grants are recorded; any role may check (required)"`
	PasswordSettings
	Timeout time.Duration `env:"--timeout" envDefault:"10s" range:"1ms.." help:"time that the database has to answer"`
	OutputSettings
}

func checkCommand() *cobra.Command {
	return withSettings(&cobra.Command{
		Use:   "check [flags] [FENCE]",
		Short: "Ask the database whether a fence is current",
		Long: `Has the database check a fence, as in orders=34, or that of WIREFENCE_FENCE, which
wirefence lock sets. It counts as a use of the token.

A handoff can follow at once. If an effect depends on the answer, use wirefence guard.

Exit status:

    0   the fence is current
    2   wrong usage
    10  the database refuses it
    69  the database could not be asked`,
		Example: "  wirefence check orders=34",
		Args:    atMostOne("one fence: wirefence check orders=34"),
	}, func(c *cobra.Command, cfg checkSettings, args []string) error {
		f, err := fenceOf(args)
		if err != nil {
			return err
		}
		return runCheck(c.Context(), cfg, f, c.OutOrStdout())
	})
}

func runCheck(ctx context.Context, cfg checkSettings, f fence.Fence, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	conn, err := connect(ctx, cfg.DatabaseURL)
	if err != nil {
		return notCurrent(err)
	}
	defer closeConn(conn)
	err = effect.Once(ctx, conn, f)
	switch answered := err == nil || fence.IsRefusal(err); {
	case answered && cfg.inJSON():
		if err := printJSON(out, checked(f, err)); err != nil {
			return err
		}
	case err == nil:
		fmt.Fprintf(out, "%s is current\n", f)
	}
	return notCurrent(err)
}

// notCurrent adds the exit status to the error of a check: the fence is refused, or the
// database could not be asked.
func notCurrent(err error) error {
	switch {
	case err == nil, errors.As(err, new(usageError)):
		return err
	case fence.IsRefusal(err):
		return &exitStatus{exitRefused, err}
	}
	return &exitStatus{exitUnavailable, err}
}

// fenceOf returns the fence of the arguments, or that of the environment.
func fenceOf(args []string) (f fence.Fence, err error) {
	text := os.Getenv("WIREFENCE_FENCE")
	if len(args) > 0 {
		text = args[0]
	}
	if text == "" {
		return f, usageError{errors.New("no fence: give one, as in orders=34, or set WIREFENCE_FENCE, as wirefence lock does")}
	}
	if f, err = fence.Parse(text); err != nil {
		return f, usageError{err}
	}
	return f, nil
}
