package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/internal/connstring"
	"github.com/wirefence/wirefence/internal/engine"
	"github.com/wirefence/wirefence/internal/timelines"
	"github.com/wirefence/wirefence/migrations"
)

// nameSession lets the history, and what is recorded of changes, say who it was, where
// the connection string doesn't: operators share the issuer's role.
func nameSession(cfg *pgx.ConnConfig) {
	if cfg.RuntimeParams["application_name"] != "" {
		return
	}
	name := "wirefence"
	if who, err := user.Current(); err == nil {
		name += "/" + who.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	cfg.RuntimeParams["application_name"] = name
}

// connect opens the issuer's own connection.
func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	if url == "" {
		return nil, usageError{errNoDatabase}
	}
	return connectBy(ctx, "WIREFENCE_DATABASE_URL", url)
}

var errNoDatabase = errors.New("WIREFENCE_DATABASE_URL is not set (--database-url): it is the connection string of the issuer's role, as in postgres://issuer@db.internal/app")

// connectBy connects with what a setting names.
func connectBy(ctx context.Context, setting, url string, edits ...func(*pgx.ConnConfig)) (*pgx.Conn, error) {
	cfg, err := connstring.Conn(url)
	if err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", setting, err)}
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = 10 * time.Second
	}
	if cfg.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		// A pooler may stand before the database: nothing is prepared by name.
		cfg.DefaultQueryExecMode = pgx.QueryExecModeDescribeExec
	}
	nameSession(cfg)
	for _, edit := range edits {
		edit(cfg)
	}
	return pgx.ConnectConfig(ctx, cfg)
}

// IssuerSettings name the database of a command that works as the issuer's role.
type IssuerSettings struct {
	DatabaseURL string `env:"WIREFENCE_DATABASE_URL" group:"Connections" file:"anew" help:"connection string of the issuer's role (required)"`
	PasswordSettings
}

// onSchema connects to the database, which must have a schema that this binary works with.
func (cfg IssuerSettings) onSchema(ctx context.Context, do func(conn *pgx.Conn) error) error {
	conn, err := openSchema(ctx, cfg.DatabaseURL)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	return do(conn)
}

// question asks the database, or changes what it has.
type question func(ctx context.Context, conn *pgx.Conn) (answer, error)

// asking are the settings of a command that asks one question.
type asking interface {
	onSchema(ctx context.Context, do func(conn *pgx.Conn) error) error
	give(w io.Writer, a answer) error
}

// asks gives a command its settings and its question, for which prepare judges settings and
// arguments before the command connects.
func asks[T asking](c *cobra.Command, prepare func(cfg T, args []string) (question, error)) *cobra.Command {
	return withSettings(c, func(c *cobra.Command, cfg T, args []string) error {
		q, err := prepare(cfg, args)
		if err != nil {
			return usageError{err}
		}
		return printAnswer(c, cfg, q)
	})
}

func printAnswer(c *cobra.Command, cfg asking, q question) error {
	return cfg.onSchema(c.Context(), func(conn *pgx.Conn) error {
		a, err := q(c.Context(), conn)
		if err != nil {
			return err
		}
		return cfg.give(c.OutOrStdout(), a)
	})
}

func openSchema(ctx context.Context, url string) (*pgx.Conn, error) {
	conn, err := connect(ctx, url)
	if err != nil {
		return nil, err
	}
	if _, err := migrations.Usable(ctx, conn); err != nil {
		closeConn(conn)
		return nil, err
	}
	return conn, nil
}

// closeConn closes a connection within a second, so that it doesn't delay the exit.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// OwnerSettings are the settings of commands that change the schema or a table. They need
// another role than the proxy's, since its rights can change tokens and guards.
type OwnerSettings struct {
	OwnerURL    string `env:"WIREFENCE_OWNER_URL" group:"Connections" file:"anew" help:"connection string of the owning role, which may create the schema, or owns the table; without it, ~WIREFENCE_DATABASE_URL~. Don't give it to the proxy: a member of ~wirefence_owner~ can change tokens and guards"`
	DatabaseURL string `env:"WIREFENCE_DATABASE_URL" group:"Connections" file:"anew" help:"the same if WIREFENCE_OWNER_URL is not set"`
	PasswordSettings
}

// TableSettings are those of every command of a table's owner.
type TableSettings struct {
	OwnerSettings
	OutputSettings
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

// onSchema connects as the owning role to a database with a schema of this very version.
func (cfg OwnerSettings) onSchema(ctx context.Context, do func(conn *pgx.Conn) error) error {
	conn, err := cfg.connect(ctx, "the table's owner")
	if err != nil {
		return err
	}
	defer closeConn(conn)
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

// node is a database on one node of Citus, or the only one.
type node struct {
	name   string // "" if there are no others
	worker bool
	*pgx.Conn
}

// onNodes calls do with the database and, if each node of Citus has the tokens, with the same one on
// the others. It is told which of those can't be used.
func onNodes(ctx context.Context, url string, do func(all []node, failed error) error) error {
	return IssuerSettings{DatabaseURL: url}.onSchema(ctx, func(conn *pgx.Conn) error {
		others, err := otherNodes(ctx, conn)
		if err != nil {
			return err
		}
		if len(others) == 0 {
			return do([]node{{Conn: conn}}, nil)
		}
		_, coordinates, err := engine.Citus(ctx, conn)
		if err != nil {
			return err
		}
		all := []node{{serverName(conn.Config()), !coordinates, conn}}
		var failed error
		for i, address := range others {
			at, err := openSchema(ctx, connstring.At(url, address))
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("node %s: %w", address, err))
				continue
			}
			defer closeConn(at)
			all = append(all, node{serverName(at.Config()), coordinates || i > 0, at})
		}
		return do(all, failed)
	})
}

// otherNodes returns the addresses of the other nodes of Citus, if each has the tokens.
func otherNodes(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	if has, err := migrations.OnNodes(ctx, conn); err != nil || !has {
		return nil, err
	}
	return engine.CitusNodes(ctx, conn)
}

// seen are the timelines that this process has seen, by the proxy's watch and by its own
// connections.
var seen timelines.Seen

// see records a timeline that the proxy's watch has seen.
func see(system string, timeline uint32) {
	seen.See(timelines.Place{System: system, Primary: true, Timeline: timeline})
}

// placeKey is the key of a connection's timelines.Place in its custom data.
const placeKey = "wirefence place"

// refuseFormerPrimary lets a pool of several hosts make and keep no connection to a primary
// that a promotion left behind. It accepts a server that doesn't tell its timeline.
func refuseFormerPrimary(cfg *pgxpool.Config) {
	others := false
	for _, f := range cfg.ConnConfig.Fallbacks {
		others = others || f.Host != cfg.ConnConfig.Host || f.Port != cfg.ConnConfig.Port
	}
	if !others {
		return
	}
	validate := cfg.ConnConfig.ValidateConnect
	cfg.ConnConfig.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if validate != nil {
			if err := validate(ctx, conn); err != nil {
				return err
			}
		}
		p, err := timelines.Ask(ctx, conn)
		if err != nil {
			return nil
		}
		seen.See(p)
		conn.CustomData()[placeKey] = p
		return seen.Behind(p)
	}
	cfg.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) {
		p, known := conn.PgConn().CustomData()[placeKey].(timelines.Place)
		return !known || seen.Behind(p) == nil, nil
	}
}
