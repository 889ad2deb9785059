package zombie

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/connstring"
	"github.com/wirefence/wirefence/internal/pgenv"
)

// How a run is led through a tap: by libpq's variables, and by the connection URLs in its
// environment and its arguments.

// aURL finds connection URLs in a text, such as JSON.
var aURL = regexp.MustCompile(`postgres(?:ql)?://[^\s"'<>]+|rediss?://[^\s"'<>]+`)

// lead opens the tap's listeners, and sets Env and Command.
func (t *tap) lead(command, env []string) error {
	to, err := pgenv.Read(env)
	if err != nil {
		return err
	}
	if t.folder, err = to.Folder(); err != nil {
		return err
	}
	if env, err = to.Lead(t.folder); err != nil {
		return err
	}
	cfg, err := connstring.Conn(to.Upstream())
	if err != nil {
		return err
	}
	if _, err := t.listen("unix", to.Socket(t.folder), func(client net.Conn) { t.serve(client, cfg) }); err != nil {
		return err
	}
	t.Env, err = t.rewrite(pgenv.With(env, map[string]string{"PGCHANNELBINDING": ""}))
	if err == nil {
		t.Command, err = t.rewrite(command)
	}
	return err
}

// rewrite returns texts whose URLs lead to the tap. A URL without a host is led by the variables. One whose
// host is a variable of the shell's stays as it is, unless a copy is meant, which it would miss.
func (t *tap) rewrite(texts []string) (led []string, err error) {
	for _, text := range texts {
		led = append(led, aURL.ReplaceAllStringFunc(text, func(found string) string {
			u, refusal := url.Parse(found)
			if refusal != nil || u.Host == "" || t.copied == "" && strings.Contains(u.Host+u.Query().Get("host"), "$") {
				return found
			}
			serve := t.through(u, found)
			if serve == nil {
				return found
			}
			at, refusal := t.listen("tcp", "127.0.0.1:0", serve)
			if err = errors.Join(err, refusal); refusal != nil {
				return found
			}
			u.Host = at.String()
			return u.String()
		}))
	}
	return led, err
}

// through is what serves the connections of a URL, which it makes fit for a listener's host; nil if
// they need not come through the tap.
func (t *tap) through(u *url.URL, text string) func(net.Conn) {
	if !strings.HasPrefix(u.Scheme, "postgres") {
		to := *u
		u.Scheme = "redis"
		if len(t.locks) == 0 {
			return nil
		}
		return func(client net.Conn) { t.serveRedis(client, &to) }
	}
	cfg, err := connstring.Conn(text)
	if err != nil {
		return nil
	}
	q := u.Query()
	for name := range q {
		if strings.HasPrefix(name, "ssl") || slices.Contains([]string{"host", "hostaddr", "port", "channel_binding", "gssencmode"}, name) {
			q.Del(name)
		}
	}
	q.Set("sslmode", "disable")
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
	return func(client net.Conn) { t.serve(client, cfg) }
}

// listen serves the clients of one listener until close.
func (t *tap) listen(network, address string, serve func(net.Conn)) (net.Addr, error) {
	listener, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	t.listeners = append(t.listeners, listener)
	t.serving.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			t.inSession(func() { serve(client) })
		}
	})
	return listener.Addr(), nil
}

// close closes the listeners, and all connections.
func (t *tap) close() error {
	for _, listener := range t.listeners {
		_ = listener.Close()
	}
	t.serving.Wait()
	t.hangUp()
	return os.RemoveAll(t.folder)
}

// dial connects to the first server of a connection string, encrypted as it says.
func dial(ctx context.Context, cfg *pgx.ConnConfig) (net.Conn, error) {
	network, address := pgconn.NetworkAddress(cfg.Host, cfg.Port)
	conn, err := cfg.DialFunc(ctx, network, address)
	if err != nil || cfg.TLSConfig == nil {
		return conn, err
	}
	if cfg.SSLNegotiation == "direct" {
		return tls.Client(conn, cfg.TLSConfig), nil
	}
	answer := make([]byte, 1)
	if err = write(conn, &pgproto3.SSLRequest{}); err == nil {
		_, err = io.ReadFull(conn, answer)
	}
	switch {
	case err != nil:
	case answer[0] == 'S':
		return tls.Client(conn, cfg.TLSConfig), nil
	case slices.ContainsFunc(cfg.Fallbacks, func(f *pgconn.FallbackConfig) bool { return f.TLSConfig == nil }):
		return conn, nil
	default:
		err = errors.New("the server does not encrypt, which the connection string requires")
	}
	_ = conn.Close()
	return nil, err
}
