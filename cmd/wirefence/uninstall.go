package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/migrations"
)

type uninstallSettings struct {
	OwnerSettings
	Yes bool `env:"--yes" help:"don't ask"`
}

func uninstallCommand() *cobra.Command {
	return withSettings(&cobra.Command{
		Use:   "uninstall",
		Short: "Remove Wirefence from a database: guards, schema and roles",
		Long: `Prints what of Wirefence there is in a database, asks, and removes it in one
transaction: the guards of all tables, the schema wirefence with all tokens and the
history, and the roles wirefence_owner, wirefence_issuer and wirefence_bypass, unless
another database of the server has them too. If the schema has anything that is not
Wirefence's, nothing is removed.

Stop the proxies and the holders of leases first. It waits for the writers of guarded
tables; a lock_timeout in the connection string's options limits that.`,
		Example: "  wirefence uninstall",
		Args:    exactly(0, "no arguments"),
	}, func(c *cobra.Command, cfg uninstallSettings, _ []string) error {
		conn, err := cfg.connect(c.Context(), "a role that may drop the schema and the roles")
		if err != nil {
			return err
		}
		defer closeConn(conn)
		there, err := migrations.Look(c.Context(), conn)
		if err != nil {
			return err
		}
		w := c.OutOrStdout()
		if !there.Schema && len(there.Roles) == 0 {
			fmt.Fprintln(w, "There is nothing of Wirefence here.")
			return nil
		}
		database := conn.Config().Database
		printInstalled(w, database, there)
		if !cfg.Yes {
			if err := confirm(c.InOrStdin(), w); err != nil {
				return err
			}
		}
		if err := migrations.Uninstall(c.Context(), conn); err != nil {
			return err
		}
		fmt.Fprintf(w, "Wirefence is removed from database %s.\n", database)
		return nil
	})
}

func printInstalled(w io.Writer, database string, there migrations.Installed) {
	fmt.Fprintf(w, "This removes from database %s:\n", database)
	for _, table := range there.Guards {
		fmt.Fprintf(w, "  the guard of table %s, which anybody with the right to it may write then\n", table)
	}
	if there.Schema {
		fmt.Fprintln(w, "  the schema wirefence, with all tokens, leases, policies and the history")
	}
	for _, other := range there.Dependents {
		fmt.Fprintf(w, "  %s, which is not Wirefence's but depends on the schema\n", other)
	}
	roles := strings.Join(there.Roles, ", ")
	switch {
	case len(there.Roles) == 0:
	case len(there.Elsewhere) > 0:
		fmt.Fprintf(w, "It keeps the roles %s: they are also in use in %s.\n", roles, strings.Join(there.Elsewhere, ", "))
	default:
		fmt.Fprintf(w, "  the roles %s\n", roles)
	}
	if len(there.Members) > 0 {
		fmt.Fprintf(w, "It keeps the logins that are members of these roles: %s.\n", strings.Join(there.Members, ", "))
	}
}

// confirm asks. No answer, as in a script, is none.
func confirm(in io.Reader, w io.Writer) error {
	fmt.Fprint(w, "Remove it? [y/N] ")
	answer, err := bufio.NewReader(in).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	if err != nil {
		fmt.Fprintln(w)
		return usageError{errors.New("nobody has answered, and nothing was removed: give --yes in a script")}
	}
	return errors.New("nothing was removed")
}
