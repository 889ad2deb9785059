package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/migrations"
)

// OwnerSettings are the settings of commands that change the schema or a table. They need
// another role than the proxy's, since its rights can change tokens and guards.
type OwnerSettings struct {
	OwnerURL    string `env:"WIREFENCE_OWNER_URL" group:"Connections" file:"yes" help:"connection string of the owning role, which may create the schema, or owns the table; without it, ~WIREFENCE_DATABASE_URL~. Don't give it to the proxy: a member of ~wirefence_owner~ can change tokens and guards"`
	DatabaseURL string `env:"WIREFENCE_DATABASE_URL" group:"Connections" file:"yes" help:"the same if WIREFENCE_OWNER_URL is not set"`
}

// ownerSetting is the setting that messages name.
const ownerSetting = "WIREFENCE_OWNER_URL"

// connect opens a connection of the owning role. The error for a missing setting says
// whatFor.
func (cfg OwnerSettings) connect(ctx context.Context, whatFor string) (*pgx.Conn, error) {
	switch {
	case cfg.OwnerURL != "":
		return connectBy(ctx, ownerSetting, cfg.OwnerURL, printWarnings)
	case cfg.DatabaseURL != "":
		return connectBy(ctx, "WIREFENCE_DATABASE_URL", cfg.DatabaseURL, printWarnings)
	}
	return nil, usageError{fmt.Errorf("%s is not set (--owner-url), nor WIREFENCE_DATABASE_URL: it is the connection string of %s, as in postgres://owner@db.internal/app", ownerSetting, whatFor)}
}

// printWarnings prints the server's warnings.
func printWarnings(cfg *pgx.ConnConfig) {
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.SeverityUnlocalized != "WARNING" {
			return
		}
		for _, line := range [][2]string{{"WARNING: ", n.Message}, {"DETAIL: ", n.Detail}, {"HINT: ", n.Hint}} {
			if line[1] != "" {
				fmt.Fprintln(os.Stderr, line[0]+line[1])
			}
		}
	}
}

// onSchema is the function onSchema as the owning role, with a schema of this very version.
func (cfg OwnerSettings) onSchema(ctx context.Context, do func(conn *pgx.Conn) error) error {
	conn, err := cfg.connect(ctx, "the table's owner")
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	if err := migrations.Verify(ctx, conn); err != nil {
		return err
	}
	return do(conn)
}

// suggestOwner adds the owner's setting to the error of an issuer that can't migrate.
func suggestOwner(err error) error {
	lacking := (*migrations.MissingRightsError)(nil)
	if errors.As(err, &lacking) && lacking.Issuer {
		return fmt.Errorf("%w: set %s", err, ownerSetting)
	}
	return err
}
