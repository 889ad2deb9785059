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

// entrance is a client on its way in: servers are tried until one takes it. As
// long as the client has not been asked for anything by a server itself, the
// next may be tried without its noticing.
type entrance struct {
	server     *Server
	client     *client
	pending    *pending
	startup    *wire.Startup
	fromClient *buffer
	deadline   time.Time
	log        *slog.Logger

	link     *upstream.Link     // to the server that was tried last
	proved   *scram.Credentials // set when the proxy has authenticated the client
	told     bool               // the client was sent the protocol's negotiation
	refusal  []byte             // what the last server said that refused the session
	failures []error
}

// arrival is a server that has taken the client, or wants its password.
type arrival struct {
	link  *upstream.Link
	from  *buffer // what the server has said, to be passed on
	whose string  // see upstream.Host.Learn
	// wanted is the role that the server must turn out to have; "" for any.
	wanted upstream.Target
	role   upstream.Role
	// noBinding says that a client that binds its login to the proxy's
	// certificate is to be told why that fails.
	noBinding bool
}

var errNone = errors.New("no upstream server takes the client")

// find returns a server that takes the client. Else the client has been told why
// there is none.
func (e *entrance) find(ctx context.Context) (*arrival, error) {
	passes := []upstream.Target{e.server.upstream.Target}
	if passes[0] == upstream.PreferStandby {
		passes = append(passes, upstream.Any)
	}
	for _, target := range passes {
		a, err := e.try(ctx, target)
		if !errors.Is(err, errNone) {
			return a, err
		}
	}
	return nil, e.giveUp(ctx)
}

// try tries all routes for a server of a role. If it returns errNone, e has noted
// why.
func (e *entrance) try(ctx context.Context, target upstream.Target) (*arrival, error) {
	routes := e.server.upstream.Routes(target, e.whose())
	var down *upstream.Host
	for i, r := range routes {
		if r.Host == down || ctx.Err() != nil {
			continue
		}
		if target != upstream.Any {
			role, err := e.server.upstream.Role(ctx, r.Host, e.whose())
			if err != nil {
				e.failures = append(e.failures, err)
				down = r.Host
				continue
			}
			if !target.Admits(role) {
				e.passOver(r, role, target)
				down = r.Host
				continue
			}
		}
		if err := e.server.upstream.BehindNow(ctx, r.Host); err != nil {
			e.failures = append(e.failures, err)
			down = r.Host
			continue
		}
		link, err := e.server.upstream.Dial(ctx, r)
		if err != nil {
			e.failures = append(e.failures, err)
			down = unreachable(err)
			continue
		}
		e.link = link
		a, err := e.ask(ctx, link, target, left(routes[i+1:], link.Route))
		if err == nil {
			return a, nil
		}
		_ = link.Close()
		if isEnded(err) {
			return nil, err
		}
		e.failures = append(e.failures, fmt.Errorf("%s: %w", r.Host, err))
		if r.TLS != link.Route.TLS {
			down = r.Host // its other route is the one that was taken
		}
	}
	return nil, errNone
}

// alternatives are what is left to try when a server refuses a session.
type alternatives struct {
	sameHost bool // the same server, encrypted otherwise
	others   bool // other servers
}

func left(routes []upstream.Route, taken upstream.Route) (a alternatives) {
	for _, r := range routes {
		a.others = a.others || r.Host != taken.Host
		a.sameHost = a.sameHost || r.Host == taken.Host && r.TLS != taken.TLS
	}
	return a
}

// whose is what the session is asked for with: see upstream.Host.Learn.
func (e *entrance) whose() string { return string(e.startup.Raw) }

func unreachable(err error) *upstream.Host {
	if u := (*upstream.UnreachableError)(nil); errors.As(err, &u) {
		return u.Host
	}
	return nil
}

func (e *entrance) passOver(r upstream.Route, role upstream.Role, target upstream.Target) {
	a := arrival{role: role, wanted: target}
	e.failures = append(e.failures, fmt.Errorf("%s: %w", r.Host, a.mismatch()))
}

// ask asks a server for the session.
func (e *entrance) ask(ctx context.Context, link *upstream.Link, target upstream.Target, more alternatives) (*arrival, error) {
	// What ends ctx ends what is read here; login sets its own deadline.
	stop := context.AfterFunc(ctx, func() { _ = link.SetDeadline(past) })
	defer stop()
	deadline := e.deadline
	if patience := time.Now().Add(e.server.options.ConnectTimeout); (more.others || more.sameHost) && patience.Before(deadline) {
		deadline = patience
	}
	_ = link.SetDeadline(deadline)
	if _, err := link.Write(e.startup.Raw); err != nil {
		return nil, err
	}
	a := &arrival{link: link, from: &buffer{}, whose: e.whose()}
	msg, at, err := nextOf(link, a.from, wire.Authentication, wire.ErrorResponse)
	if err != nil {
		return nil, err
	}
	if msg[0] == wire.ErrorResponse {
		return e.refused(a, msg, at, more)
	}
	if err := e.authentication(ctx, a, msg, at); err != nil {
		return nil, err
	}
	if err := e.checkRole(a, target); err != nil {
		return nil, err
	}
	_ = link.SetDeadline(e.deadline)
	return a, nil
}

// refused passes a server's refusal on, or remembers it while there is something
// left to try, as libpq does: the same server, since pg_hba.conf may want the
// connection encrypted otherwise; another, if this one takes no sessions now.
func (e *entrance) refused(a *arrival, msg []byte, at int, more alternatives) (*arrival, error) {
	if again := more.sameHost || more.others && wire.ErrorCode(msg) == "57P03"; !again {
		if e.told {
			a.from.used(at)
		}
		return a, nil
	}
	e.refusal = append([]byte(nil), msg...)
	refusal, err := wire.DecodeError(msg)
	if err != nil {
		return nil, err
	}
	return nil, errors.New(refusal.Message)
}

// authentication handles the server's first Authentication message, which
// stands at an offset of what it has sent.
func (e *entrance) authentication(ctx context.Context, a *arrival, msg []byte, at int) error {
	if e.server.users == nil {
		if wire.AuthKind(msg) == wire.AuthSASL {
			e.offer(a, msg, at)
		}
		return nil
	}
	// From here on the client hears the proxy, so what came before goes first.
	if !e.told && at > 0 {
		if _, err := e.client.Write(a.from.bytes()[:at]); err != nil {
			return &endedLogin{why: err}
		}
		e.told = true
		// The next server must not speak another version, nor say so again.
		for in := a.from.bytes()[:at]; len(whole(in)) > 0; in = in[len(whole(in)):] {
			if in[0] == wire.NegotiateProtocol {
				e.startup = e.startup.Negotiated(whole(in))
			}
		}
	}
	a.from.used(at)
	if e.proved == nil {
		if err := e.authenticate(ctx); err != nil {
			return err
		}
	}
	return e.logIn(a)
}

// offer adapts the server's offer of mechanisms to the client's connection. A
// client without TLS would take channel binding for an attack. One with TLS binds
// its login to the proxy's certificate, which is of no use but where the server
// has the same.
func (e *entrance) offer(a *arrival, msg []byte, at int) {
	plus := false
	for _, m := range wire.Mechanisms(msg) {
		plus = plus || m == scram.MechanismPlus
	}
	switch {
	case !plus:
	case !e.client.encrypted:
		size := len(msg)
		all := a.from.bytes()
		changed := append([]byte(nil), all[:at]...)
		changed = append(changed, wire.WithoutMechanism(msg, scram.MechanismPlus)...)
		changed = append(changed, all[at+size:]...)
		*a.from = buffer{b: changed, w: len(changed)}
	default:
		a.noBinding = string(e.client.binding) != string(a.link.Binding)
	}
}

// checkRole finds out whether the server has the role that is wanted. Where it
// wants to hear from the client first, the session looks as its login ends.
func (e *entrance) checkRole(a *arrival, target upstream.Target) error {
	if e.server.upstream.Target == upstream.Any {
		return nil
	}
	a.wanted = target
	msg, _, err := nextOf(a.link, a.from, wire.Authentication, wire.ErrorResponse)
	if err != nil || msg[0] == wire.Authentication && wire.AuthKind(msg) != wire.AuthOk {
		return err
	}
	if _, _, err := nextOf(a.link, a.from, wire.ReadyForQuery, wire.ErrorResponse); err != nil {
		return err
	}
	if a.report(); !a.admits() {
		return a.mismatch()
	}
	return nil
}

// report notes what whole messages in the buffer say of the server's role, and
// whether they end the login.
func (a *arrival) report() (ready bool) {
	for in := a.from.bytes(); ; {
		msg := whole(in)
		if len(msg) == 0 {
			return ready
		}
		switch msg[0] {
		case wire.ParameterStatus:
			a.role.Report(wire.Parameter(msg))
		case wire.ReadyForQuery:
			ready = true
			a.link.Route.Host.Learn(a.role, a.whose)
		}
		in = in[len(msg):]
	}
}

func (a *arrival) admits() bool { return a.wanted == "" || a.wanted.Admits(a.role) }

func (a *arrival) mismatch() error {
	return fmt.Errorf("the server is %s, but target_session_attrs is %s", a.role, a.wanted)
}

// whole returns the message that b begins with, or nothing if it isn't there.
func whole(b []byte) []byte {
	if _, size, ok := wire.Header(b); ok && size <= len(b) {
		return b[:size]
	}
	return nil
}

// maxLogin bounds in bytes what a server may say before a login is decided.
const maxLogin = 1 << 20

// nextOf reads until one of two types of messages has come, and returns it with
// its offset in the buffer, where all stays.
func nextOf(link *upstream.Link, in *buffer, one, other byte) (msg []byte, at int, err error) {
	for {
		for {
			msg := whole(in.bytes()[at:])
			if len(msg) == 0 {
				break
			}
			if msg[0] == one || msg[0] == other {
				return msg, at, nil
			}
			at += len(msg)
		}
		if typ, size, ok := wire.Header(in.bytes()[at:]); ok && size == 0 || len(in.bytes()) > maxLogin {
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

// giveUp tells the client that no server takes it, in the words of a server if
// one has said why.
func (e *entrance) giveUp(ctx context.Context) error {
	if why := dismissal(ctx); why != nil {
		refuse(e.client, *why)
		return context.Cause(ctx)
	}
	err := errors.Join(e.failures...)
	if e.refusal != nil {
		_ = e.client.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = e.client.Write(e.refusal)
		return &endedLogin{said: wire.ReadError(e.refusal), why: err}
	}
	e.server.metrics.rejected.WithLabelValues("upstream").Inc()
	if e.server.unreachable.note(err) {
		e.log.Error("no upstream server takes the client", "upstream", e.server.upstream.String(), "error", err)
	}
	refuse(e.client, wire.Error{Code: "08006", Message: "could not connect to the upstream server", Detail: lines(e.failures),
		Hint: "Is PostgreSQL running there, and does WIREFENCE_UPSTREAM name it?"})
	return errUnreachable
}

// lines words failures for a client.
func lines(errs []error) string {
	var all []string
	for _, err := range errs {
		text := err.Error()
		if asked := (*upstream.RoleError)(nil); errors.As(err, &asked) && unreachable(err) == nil {
			text = asked.Host.String() + ": the server could not be asked for its role; the proxy's log says why"
		}
		all = append(all, text)
	}
	return strings.Join(all, "\n")
}
