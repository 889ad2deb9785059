package lockclient

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
)

// PostgresSealer seals grants in PostgreSQL. It is as safe for concurrent use as its
// Querier.
type PostgresSealer struct {
	// Querier is a *pgxpool.Pool, or a *pgx.Conn that nobody else uses and whose client
	// has one lease at a time. Each renewal of a lease reads the last grant once. A
	// transaction cannot serve: a grant is valid only once it has committed. The role
	// must have wirefence_issuer.
	Querier fence.Querier
	// Source names the service that counts the tokens: the lease store, such as
	// redis.Source. A resource records the first source, and then refuses the
	// grants of another. Default: none, which does not distinguish two stores.
	Source fence.Source
	// Server names the server in errors. Default: host:port of a *pgx.Conn; the errors
	// of a pool name it only if connecting failed.
	Server string
}

var (
	_ Sealer = PostgresSealer{}
	_ Record = PostgresSealer{}
)

// Seal implements Sealer.
func (s PostgresSealer) Seal(ctx context.Context, resource fence.Resource, token fence.Token, holder string) (bool, error) {
	sealed, err := fence.Seal(ctx, s.Querier, fence.Grant{Resource: resource, Token: token, Holder: holder, Source: s.Source})
	if err != nil {
		return false, fmt.Errorf("%s: %w", s.where(), err)
	}
	return sealed, nil
}

// LastToken implements Sealer.
func (s PostgresSealer) LastToken(ctx context.Context, resource fence.Resource) (fence.Token, error) {
	last, err := fence.LastToken(ctx, s.Querier, resource)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", s.where(), err)
	}
	return last, nil
}

// LastGrant implements Record.
func (s PostgresSealer) LastGrant(ctx context.Context, resource fence.Resource) (fence.Grant, error) {
	last, err := fence.LastGrant(ctx, s.Querier, resource)
	if err != nil {
		return fence.Grant{}, fmt.Errorf("%s: %w", s.where(), err)
	}
	return last, nil
}

func (s PostgresSealer) where() string {
	if server := s.server(); server != "" {
		return "PostgreSQL at " + server
	}
	return "PostgreSQL"
}

// server is Server or its default.
func (s PostgresSealer) server() string {
	conn, ok := s.Querier.(*pgx.Conn)
	if s.Server != "" || !ok {
		return s.Server
	}
	c := conn.Config()
	return net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
}
