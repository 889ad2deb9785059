package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/scram"
	"github.com/wirefence/wirefence/proxy/internal/upstream"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// connector finds a server that accepts a client: it tries one after the other. It may
// try the next one as long as no server has asked the client for a password.
type connector struct {
	server     *Server
	client     *client
	pending    *pending
	startup    *wire.Startup
	fromClient *buffer
	deadline   time.Time
	log        *slog.Logger

	link            *upstream.Link     // to the server that was tried last
	credentials     *scram.Credentials // set once the proxy has authenticated the client
	negotiationSent bool               // the client has got NegotiateProtocolVersion
	lastRefusal     []byte             // the last ErrorResponse of a server that was passed over
	failures        []error
}

// candidate is a server that has accepted the startup packet, or wants a password.
type candidate struct {
	link       *upstream.Link
	from       *buffer // what the server has sent, for the client
	startupKey string  // see upstream.Host.Learn
	// wantedRole is the role that the server must report; "" for any.
	wantedRole upstream.Target
	role       upstream.Role
	// bindingDiffers says that channel binding fails: the server's certificate isn't the
	// proxy's. bindingWithheld says that the proxy has no TLS, and didn't pass on the offer.
	bindingDiffers, bindingWithheld bool
}

var errNoServer = errors.New("no upstream server accepts the client")

// findServer returns a server that accepts the client. On an error it has told the
// client.
func (c *connector) findServer(ctx context.Context) (*candidate, error) {
	passes := []upstream.Target{c.server.upstream.Target}
	if passes[0] == upstream.PreferStandby {
		passes = append(passes, upstream.Any)
	}
	for _, target := range passes {
		cand, err := c.tryRoutes(ctx, target)
		if !errors.Is(err, errNoServer) {
			return cand, err
		}
	}
	return nil, c.reportFailure(ctx)
}

// tryRoutes tries all routes to servers of a role. If it returns errNoServer, it has
// added the causes to c.failures.
func (c *connector) tryRoutes(ctx context.Context, target upstream.Target) (*candidate, error) {
	routes := c.server.upstream.Routes(target, c.startupKey())
	var down *upstream.Host
	for i, r := range routes {
		if r.Host == down || ctx.Err() != nil {
			continue
		}
		if target != upstream.Any {
			role, err := c.server.upstream.Role(ctx, r.Host, c.startupKey())
			if err != nil {
				c.failures = append(c.failures, err)
				down = r.Host
				continue
			}
			if !target.Admits(role) {
				c.recordMismatch(r, role, target)
				down = r.Host
				continue
			}
		}
		if err := c.server.upstream.BehindNow(ctx, r.Host); err != nil {
			c.failures = append(c.failures, err)
			down = r.Host
			continue
		}
		link, err := c.server.upstream.Dial(ctx, r)
		if err != nil {
			c.failures = append(c.failures, err)
			down = unreachable(err)
			continue
		}
		c.link = link
		cand, err := c.requestSession(ctx, link, target, remaining(routes[i+1:], link.Route))
		if err == nil {
			return cand, nil
		}
		_ = link.Close()
		if isEnded(err) {
			return nil, err
		}
		c.failures = append(c.failures, fmt.Errorf("%s: %w", r.Host, err))
		if r.TLS != link.Route.TLS {
			down = r.Host // Dial took its other route, so that has failed, too
		}
	}
	return nil, errNoServer
}

// alternatives are the routes that remain when a server refuses a session.
type alternatives struct {
	sameHost bool // the same server, encrypted otherwise
	others   bool // other servers
}

func remaining(routes []upstream.Route, taken upstream.Route) (a alternatives) {
	for _, r := range routes {
		a.others = a.others || r.Host != taken.Host
		a.sameHost = a.sameHost || r.Host == taken.Host && r.TLS != taken.TLS
	}
	return a
}

// startupKey identifies what the startup packet asks for: see upstream.Host.Learn.
func (c *connector) startupKey() string { return string(c.startup.Raw) }

func unreachable(err error) *upstream.Host {
	if u := (*upstream.UnreachableError)(nil); errors.As(err, &u) {
		return u.Host
	}
	return nil
}

func (c *connector) recordMismatch(r upstream.Route, role upstream.Role, target upstream.Target) {
	cand := candidate{role: role, wantedRole: target}
	c.failures = append(c.failures, fmt.Errorf("%s: %w", r.Host, cand.mismatch()))
}

// requestSession sends a server the startup packet and reads its first answer.
func (c *connector) requestSession(ctx context.Context, link *upstream.Link, target upstream.Target, more alternatives) (*candidate, error) {
	// The end of ctx ends the reads below; login sets its own deadline.
	stop := context.AfterFunc(ctx, func() { _ = link.SetDeadline(past) })
	defer stop()
	deadline := c.deadline
	if patience := time.Now().Add(c.server.options.ConnectTimeout); (more.others || more.sameHost) && patience.Before(deadline) {
		deadline = patience
	}
	_ = link.SetDeadline(deadline)
	if _, err := link.Write(c.startup.Raw); err != nil {
		return nil, err
	}
	cand := &candidate{link: link, from: &buffer{}, startupKey: c.startupKey()}
	msg, at, err := readUntil(link, cand.from, wire.Authentication, wire.ErrorResponse)
	if err != nil {
		return nil, err
	}
	if msg[0] == wire.ErrorResponse {
		return c.handleRefusal(cand, msg, at, more)
	}
	if err := c.handleAuthentication(ctx, cand, msg, at); err != nil {
		return nil, err
	}
	if err := c.checkRole(cand, target); err != nil {
		return nil, err
	}
	_ = link.SetDeadline(c.deadline)
	return cand, nil
}

// handleRefusal passes a server's ErrorResponse on, or keeps it while a route remains, as
// libpq does: to the same server, since pg_hba.conf may demand another encryption; to
// another one, if this one accepts no sessions now (57P03).
func (c *connector) handleRefusal(cand *candidate, msg []byte, at int, more alternatives) (*candidate, error) {
	if retry := more.sameHost || more.others && wire.ErrorCode(msg) == "57P03"; !retry {
		if c.negotiationSent {
			cand.from.used(at)
		}
		return cand, nil
	}
	c.lastRefusal = append([]byte(nil), msg...)
	refusal, err := wire.DecodeError(msg)
	if err != nil {
		return nil, err
	}
	return nil, errors.New(refusal.Message)
}

// handleAuthentication handles the server's first Authentication message, which stands at
// an offset of the buffer.
func (c *connector) handleAuthentication(ctx context.Context, cand *candidate, msg []byte, at int) error {
	if c.server.users == nil {
		if wire.AuthKind(msg) == wire.AuthSASL {
			c.adaptMechanisms(cand, msg, at)
		}
		return nil
	}
	// The proxy speaks to the client next, so the server's earlier messages go first.
	if !c.negotiationSent && at > 0 {
		if _, err := c.client.Write(cand.from.bytes()[:at]); err != nil {
			return &endedLoginError{cause: err}
		}
		c.negotiationSent = true
		// The next server must speak the same version, and not negotiate again.
		for in := cand.from.bytes()[:at]; len(firstMessage(in)) > 0; in = in[len(firstMessage(in)):] {
			if in[0] == wire.NegotiateProtocol {
				c.startup = c.startup.Negotiated(firstMessage(in))
			}
		}
	}
	cand.from.used(at)
	if c.credentials == nil {
		if err := c.authenticate(ctx); err != nil {
			return err
		}
	}
	return c.logInUpstream(cand)
}

// adaptMechanisms adapts the server's SASL mechanisms to the client's connection. A
// client without TLS would take an offer of channel binding for an attack. One with TLS
// binds its login to the proxy's certificate, which succeeds only where the server has
// the same.
func (c *connector) adaptMechanisms(cand *candidate, msg []byte, at int) {
	plus := false
	for _, m := range wire.Mechanisms(msg) {
		plus = plus || m == scram.MechanismPlus
	}
	switch {
	case !plus:
	case !c.client.encrypted:
		size := len(msg)
		all := cand.from.bytes()
		changed := append([]byte(nil), all[:at]...)
		changed = append(changed, wire.WithoutMechanism(msg, scram.MechanismPlus)...)
		changed = append(changed, all[at+size:]...)
		*cand.from = buffer{b: changed, w: len(changed)}
		cand.bindingDiffers, cand.bindingWithheld = true, true
	default:
		cand.bindingDiffers = string(c.client.binding) != string(cand.link.Binding)
	}
}

// checkRole returns an error if the server doesn't have the wanted role. A server that
// asks for a password tells its role later; then conn.checkRole checks it.
func (c *connector) checkRole(cand *candidate, target upstream.Target) error {
	if c.server.upstream.Target == upstream.Any {
		return nil
	}
	cand.wantedRole = target
	msg, _, err := readUntil(cand.link, cand.from, wire.Authentication, wire.ErrorResponse)
	if err != nil || msg[0] == wire.Authentication && wire.AuthKind(msg) != wire.AuthOk {
		return err
	}
	if _, _, err := readUntil(cand.link, cand.from, wire.ReadyForQuery, wire.ErrorResponse); err != nil {
		return err
	}
	if cand.learnRole(); !cand.admits() {
		return cand.mismatch()
	}
	return nil
}

// learnRole reads the server's role from the complete messages in the buffer, and reports
// whether they end the login.
func (cand *candidate) learnRole() (ready bool) {
	for in := cand.from.bytes(); ; {
		msg := firstMessage(in)
		if len(msg) == 0 {
			return ready
		}
		switch msg[0] {
		case wire.ParameterStatus:
			cand.role.Report(wire.Parameter(msg))
		case wire.ReadyForQuery:
			ready = true
			cand.link.Route.Host.Learn(cand.role, cand.startupKey)
		}
		in = in[len(msg):]
	}
}

func (cand *candidate) admits() bool {
	return cand.wantedRole == "" || cand.wantedRole.Admits(cand.role)
}

func (cand *candidate) mismatch() error {
	return fmt.Errorf("the server is %s, but target_session_attrs is %s", cand.role, cand.wantedRole)
}

// firstMessage returns the message at the start of b, or nil if it isn't complete.
func firstMessage(b []byte) []byte {
	if _, size, ok := wire.Header(b); ok && size <= len(b) {
		return b[:size]
	}
	return nil
}

// maxLoginBytes bounds what a server may send before a login is decided.
const maxLoginBytes = 1 << 20

// readUntil reads until a message of one of two types has come, and returns it with its
// offset. All messages stay in the buffer.
func readUntil(link *upstream.Link, in *buffer, one, other byte) (msg []byte, at int, err error) {
	for {
		for {
			msg := firstMessage(in.bytes()[at:])
			if len(msg) == 0 {
				break
			}
			if msg[0] == one || msg[0] == other {
				return msg, at, nil
			}
			at += len(msg)
		}
		if typ, size, ok := wire.Header(in.bytes()[at:]); ok && size == 0 || len(in.bytes()) > maxLoginBytes {
			return nil, 0, fmt.Errorf("the server does not speak the protocol: message of type %q", typ)
		}
		if _, err := in.read(link); err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the server closed the connection before it answered")
			}
			return nil, 0, err
		}
	}
}

// reportFailure tells the client that no server accepts it: by the last ErrorResponse of
// a server, if there is one.
func (c *connector) reportFailure(ctx context.Context) error {
	if why := loginEndError(ctx); why != nil {
		refuse(c.client, *why)
		return context.Cause(ctx)
	}
	err := errors.Join(c.failures...)
	if c.lastRefusal != nil {
		_ = c.client.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = c.client.Write(c.lastRefusal)
		return &endedLoginError{sent: wire.ReadError(c.lastRefusal), cause: err}
	}
	c.server.metrics.rejected.WithLabelValues("upstream").Inc()
	c.server.logLimits.unreachable.On(c.log).Error("no upstream server accepts the client", "upstream", c.server.upstream.String(), "error", err)
	refuse(c.client, wire.Error{Code: "08006", Message: "could not connect to the upstream server", Detail: failureLines(c.failures),
		Hint: "Is PostgreSQL running there, and does WIREFENCE_UPSTREAM name it?"})
	return errUnreachableLogged
}

// failureLines words the failures for a client, without what only the operator may know.
func failureLines(errs []error) string {
	var all []string
	for _, err := range errs {
		text := err.Error()
		if asked := (*upstream.RoleError)(nil); errors.As(err, &asked) && unreachable(err) == nil {
			text = asked.Host.String() + ": the proxy could not ask the server for its role; see the proxy's log"
		}
		all = append(all, text)
	}
	return strings.Join(all, "\n")
}
