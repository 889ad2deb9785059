package main

import (
	"context"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/doctor"
)

// bypassTime bounds the look at where a command's connections lead.
const bypassTime = 2 * time.Second

// warnOfBypass warns of a command whose writes nothing checks: libpq's variables lead it to the
// database itself, and no guard names the resource. It opens no connection as the command
// would: it compares with where the issuer's connection leads, and asks that one whether there
// is a proxy on the way. Where that isn't known, it doesn't warn.
func warnOfBypass(ctx context.Context, database *pgxpool.Pool, resource fence.Resource, command []string, log *slog.Logger) {
	if namesServer(command) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, bypassTime)
	defer cancel()
	err := database.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		conn := c.Conn()
		if !leadsTo(ctx, conn.PgConn().Conn().RemoteAddr()) {
			return nil
		}
		guards, err := fence.Guards(ctx, conn)
		if err != nil || slices.ContainsFunc(guards, func(g fence.Guard) bool { return names(g, resource) }) {
			return err
		}
		if proxied, err := doctor.Fences(ctx, conn); err != nil || proxied {
			return err
		}
		log.Warn("PGHOST and PGPORT lead to no proxy, and no table is guarded for the resource: writes of a former holder would not be refused",
			"resource", resource, "hint", "Set PGHOST and PGPORT to the proxy's address, or run wirefence protect TABLE --resource "+string(resource)+".")
		return nil
	})
	if err != nil {
		log.Debug("it is not known whether the command's writes are checked", "error", err)
	}
}

// namesServer reports whether a command line seems to name a server itself.
func namesServer(command []string) bool {
	return slices.ContainsFunc(strings.Fields(strings.Join(command, " ")), func(word string) bool {
		word = strings.Trim(word, `"'`)
		return strings.Contains(word, "://") || strings.HasPrefix(word, "host=") || strings.HasPrefix(word, "port=") ||
			strings.HasPrefix(word, "--host") || strings.HasPrefix(word, "--port") ||
			strings.HasPrefix(word, "-h") || strings.HasPrefix(word, "-p") || strings.HasPrefix(word, "PGHOST=") || strings.HasPrefix(word, "PGPORT=")
	})
}

// leadsTo reports whether a client with libpq's variables, or its defaults, connects to an
// address.
func leadsTo(ctx context.Context, server net.Addr) bool {
	cfg, err := pgconn.ParseConfig("")
	if err != nil {
		return false
	}
	host, port := endpoint(server.Network(), server.String())
	ours := pgconn.FallbackConfig{Host: cfg.Host, Port: cfg.Port}
	for _, other := range append([]*pgconn.FallbackConfig{&ours}, cfg.Fallbacks...) {
		at, atPort := endpoint(pgconn.NetworkAddress(other.Host, other.Port))
		if atPort != port {
			continue
		}
		addresses, _ := net.DefaultResolver.LookupHost(ctx, at)
		for _, address := range append(addresses, at) {
			if address == host || isOwn(address) && isOwn(host) {
				return true
			}
		}
	}
	return false
}

// ownSocket stands for a Unix socket, whatever its folder.
const ownSocket = "localhost"

// endpoint returns the host and the port of an address. That of a Unix socket ends in
// .s.PGSQL.5432.
func endpoint(network, address string) (host, port string) {
	if network == "unix" {
		return ownSocket, address[strings.LastIndex(address, ".")+1:]
	}
	host, port, _ = net.SplitHostPort(address)
	return host, port
}

func isOwn(host string) bool {
	ip := net.ParseIP(host)
	return host == ownSocket || ip != nil && ip.IsLoopback()
}

var column = regexp.MustCompile(`\\\{[^{}]*\\\}`)

// names reports whether a guard is for a resource, which its template may name.
func names(g fence.Guard, resource fence.Resource) bool {
	template := "(?s)^" + column.ReplaceAllString(regexp.QuoteMeta(g.Resource), ".*") + "$"
	is, err := regexp.MatchString(template, string(resource))
	return is && err == nil
}
