package main

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// SealSettings name the databases in which grants are sealed besides the one of
// WIREFENCE_DATABASE_URL, which is each command's own.
type SealSettings struct {
	SealURLs connectionStrings `env:"WIREFENCE_SEAL_URLS" flag:"seal" group:"Leases" type:"url..." file:"yes" help:"connection strings of the issuer's roles in [further databases](several-databases.md) that the holder writes to, separated by spaces: a grant counts only if it is sealed in all of them, and in the database of ~WIREFENCE_DATABASE_URL~. The flag may be given several times"`
}

// connectionStrings are several connection strings. A URL may have commas, between its hosts, so
// the next one begins where its scheme does.
type connectionStrings []string

var nextURL = regexp.MustCompile(`[\s,]+postgres(ql)?://`)

// UnmarshalText splits a text. What isn't a connection string is refused where it is used.
func (all *connectionStrings) UnmarshalText(text []byte) error {
	rest := strings.TrimSpace(string(text))
	for rest != "" {
		end := len(rest)
		if at := nextURL.FindStringIndex(rest); at != nil {
			end = at[0]
		}
		*all = append(*all, rest[:end])
		rest = strings.TrimLeft(rest[end:], " \t\r\n,")
	}
	return nil
}

// sealedDatabase is one in which grants are sealed.
type sealedDatabase struct {
	*pgxpool.Pool
	name string // for messages: its hosts and the database
}

// openDatabase makes the pool of a database that a setting names. It doesn't connect yet.
func openDatabase(ctx context.Context, setting, url string) (sealedDatabase, error) {
	pool, err := openPool(ctx, url, mostConnections)
	if err != nil {
		return sealedDatabase{}, fmt.Errorf("%s: %w", setting, err)
	}
	return sealedDatabase{pool, serverName(pool.Config().ConnConfig)}, nil
}

// sealer seals tokens of a source in the database.
func (d sealedDatabase) sealer(source fence.Source) lockclient.PostgresSealer {
	return lockclient.PostgresSealer{Querier: d.Pool, Source: source, Server: d.name}
}

// serverName names all hosts that a connection string names, and the database.
func serverName(cfg *pgx.ConnConfig) string {
	hosts := []string{net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))}
	for _, f := range cfg.Fallbacks {
		if host := net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port))); !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return strings.Join(hosts, ",") + "/" + cfg.Database
}

// openSealed adds the databases that the settings name to those in which grants are sealed.
// Two names of one database that can't be told apart here do no harm: a grant that it has
// recorded already counts as sealed.
func (l *leases) openSealed(ctx context.Context, urls connectionStrings) error {
	for _, url := range urls {
		d, err := openDatabase(ctx, "WIREFENCE_SEAL_URLS", url)
		if err != nil {
			return err
		}
		l.closers = append(l.closers, d.Close)
		if slices.ContainsFunc(l.databases, func(other sealedDatabase) bool { return other.name == d.name }) {
			return fmt.Errorf("WIREFENCE_SEAL_URLS names %s, which is named before: name each database once, and that of WIREFENCE_DATABASE_URL only there", d.name)
		}
		l.databases = append(l.databases, d)
	}
	return nil
}
