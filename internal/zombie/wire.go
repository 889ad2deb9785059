package zombie

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

// wire is a connection of a run.
type wire struct {
	*tap
	number         int
	client, server net.Conn
	to             *pgx.ConnConfig

	statements, portals map[string]Message // by name; a portal has parameters
	midway              bool               // in a statement's messages before a Sync
	asked               []*Message         // not yet answered; under mu
}

// serve serves one connection. It owns the client's.
func (t *tap) serve(client net.Conn, to *pgx.ConnConfig) {
	t.keep(client)
	defer t.end(client)
	startup, err := readStartup(client)
	if err != nil {
		return
	}
	server, err := dial(context.Background(), to)
	if err != nil {
		return
	}
	t.keep(server)
	defer t.end(server)
	if cancel, ok := startup.(*pgproto3.CancelRequest); ok {
		sendCancel(server, cancel)
		return
	}
	if s, ok := startup.(*pgproto3.StartupMessage); ok && t.copied != "" {
		if name := cmp.Or(s.Parameters["database"], s.Parameters["user"]); name != t.source {
			refusal, _ := (&pgproto3.ErrorResponse{Severity: "FATAL", Code: "3D000",
				Message: fmt.Sprintf("several moments at once have copies of the database %q, and none of %q: explore with --jobs 1", t.source, name)}).Encode(nil)
			_, _ = client.Write(refusal)
			return
		}
		s.Parameters["database"] = t.copied
	}
	w := &wire{tap: t, number: t.connected(), client: client, server: server, to: to, statements: map[string]Message{}, portals: map[string]Message{}}
	t.pass(&Message{Connection: w.number, Kind: connects})
	if err := write(server, startup); err != nil {
		return
	}
	t.inSession(func() {
		w.answer()
		_ = client.Close()
	})
	w.ask()
}

// ask forwards what the client sends until it hangs up.
func (w *wire) ask() {
	for from := bufio.NewReader(w.client); ; {
		raw, err := readMessage(from)
		if err != nil {
			return
		}
		m := w.read(raw)
		if m != nil {
			m.Connection = w.number
			w.mu.Lock()
			w.asked = append(w.asked, m)
			w.mu.Unlock()
		}
		w.pass(m)
		if _, err := w.server.Write(raw); err != nil {
			return
		}
	}
}

// read is a message for the list, or nil.
func (w *wire) read(raw []byte) *Message {
	body, starts := raw[5:], !w.midway
	switch raw[0] {
	case 'Q':
		return &Message{Kind: queries, SQL: cString(body), starts: true}
	case 'P':
		p := pgproto3.Parse{}
		if p.Decode(body) == nil {
			w.statements[p.Name] = Message{SQL: p.Query}
		}
	case 'B':
		b := pgproto3.Bind{}
		if b.Decode(body) != nil {
			return nil
		}
		portal := w.statements[b.PreparedStatement]
		portal.Parameters, portal.binary = parameters(b), slices.Contains(b.ParameterFormatCodes, 1)
		w.portals[b.DestinationPortal], w.midway = portal, true
		return &Message{Kind: binds, SQL: portal.SQL, Parameters: portal.Parameters, starts: starts}
	case 'E':
		portal := w.portals[cString(body)]
		return &Message{Kind: executes, SQL: portal.SQL, Parameters: portal.Parameters, binary: portal.binary}
	case 'S':
		if w.midway = false; !starts {
			return &Message{Kind: syncs, SQL: w.portals[""].SQL}
		}
	case 'F':
		return &Message{Kind: calls, starts: true}
	case 'c', 'f':
		return &Message{Kind: copied_}
	case 'X':
		return &Message{Kind: closes}
	}
	return nil
}

// answer forwards what the server sends, and notes how it has answered.
func (w *wire) answer() {
	from, to := bufio.NewReader(w.server), bufio.NewWriter(w.client)
	for {
		raw, err := readMessage(from)
		if err != nil {
			return
		}
		w.note(raw)
		if _, err := to.Write(raw); err != nil {
			return
		}
		if from.Buffered() == 0 && to.Flush() != nil {
			return
		}
	}
}

func (w *wire) note(raw []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := ""
	switch raw[0] {
	case 'K':
		key := pgproto3.BackendKeyData{}
		if key.Decode(raw[5:]) == nil {
			w.backends[key.ProcessID] = &backend{pgproto3.CancelRequest(key), w.to}
		}
	case 'C':
		text = cString(raw[5:])
	case 'E':
		e := pgproto3.ErrorResponse{}
		if e.Decode(raw[5:]) == nil {
			text = e.Severity + ": " + e.Message
		}
	case 'Z':
		for len(w.asked) > 0 { // answered, up to the Query or Sync
			kind := w.asked[0].Kind
			w.asked[0].answered = time.Since(w.began)
			if w.asked = w.asked[1:]; kind == queries || kind == syncs || kind == calls {
				break
			}
		}
	}
	for i, m := range w.asked {
		if text == "" || m.Kind != queries && m.Kind != executes && m.Kind != calls {
			continue
		}
		m.Answer = strings.TrimPrefix(m.Answer+", "+text, ", ")
		if m.Kind == executes {
			w.asked = slices.Delete(w.asked, i, i+1)
		}
		return
	}
}

// readStartup reads a client's first packet, and refuses to encrypt. The client sends nothing
// behind it before it is answered.
func readStartup(client net.Conn) (pgproto3.FrontendMessage, error) {
	for from := pgproto3.NewBackend(client, client); ; {
		startup, err := from.ReceiveStartupMessage()
		switch startup.(type) {
		case *pgproto3.SSLRequest, *pgproto3.GSSEncRequest:
			_, err = client.Write([]byte{'N'})
		default:
			return startup, err
		}
		if err != nil {
			return nil, err
		}
	}
}

func write(to net.Conn, m pgproto3.FrontendMessage) error {
	raw, err := m.Encode(nil)
	if err == nil {
		_, err = to.Write(raw)
	}
	return err
}

// sendCancel waits until the server has cancelled: it closes the connection then.
func sendCancel(server net.Conn, cancel *pgproto3.CancelRequest) {
	if write(server, cancel) == nil {
		_, _ = server.Read(make([]byte, 1))
	}
}

func readMessage(from *bufio.Reader) ([]byte, error) {
	head, err := from.Peek(5)
	if err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size < 4 || size > 1<<30 {
		return nil, errors.New("this is no message")
	}
	raw := make([]byte, 1+size)
	_, err = io.ReadFull(from, raw)
	return raw, err
}

func cString(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}

func parameters(b pgproto3.Bind) (all []*string) {
	for i, value := range b.Parameters {
		text := string(value)
		if n := len(b.ParameterFormatCodes); n == 1 && b.ParameterFormatCodes[0] == 1 || n > 1 && b.ParameterFormatCodes[i] == 1 {
			text = `\x` + hex.EncodeToString(value)
		}
		all = append(all, &text)
		if value == nil {
			all[i] = nil
		}
	}
	return all
}
