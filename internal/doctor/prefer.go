package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// sslRequest asks for TLS (documentation, "SSLRequest").
var sslRequest = []byte{0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f}

// preferTLS has sslmode=prefer go on with the connection on which TLS was declined, as
// libpq does. pgx closes it and opens another, and a proxy counts the first as rejected.
func preferTLS(cfg *pgx.ConnConfig) {
	wanted := cfg.TLSConfig
	if wanted == nil || len(cfg.Fallbacks) != 1 {
		return
	}
	if plain := cfg.Fallbacks[0]; plain.TLSConfig != nil || plain.Host != cfg.Host || plain.Port != cfg.Port {
		return
	}
	cfg.TLSConfig, cfg.Fallbacks = nil, nil
	renew := cfg.AfterNetConnect // of connstring.Origin
	cfg.AfterNetConnect = func(ctx context.Context, c *pgconn.Config, conn net.Conn) (net.Conn, error) {
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		secured, err := askTLS(ctx, conn, wanted)
		if !stop() {
			return conn, ctx.Err()
		}
		if err != nil {
			return conn, err
		}
		if renew != nil {
			return renew(ctx, c, secured)
		}
		return secured, nil
	}
}

func askTLS(ctx context.Context, conn net.Conn, wanted *tls.Config) (net.Conn, error) {
	if _, err := conn.Write(sslRequest); err != nil {
		return nil, err
	}
	var answer [1]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return nil, err
	}
	switch answer[0] {
	case 'N':
		return conn, nil
	case 'S':
		secured := tls.Client(conn, wanted)
		return secured, secured.HandshakeContext(ctx)
	}
	return nil, errors.New("no answer to an SSLRequest: it does not speak the protocol of PostgreSQL")
}
