package secure_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy/internal/secure"
)

// sockets are the two ends of a connection.
func sockets(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Close()
	})
	return client, server
}

func configs(t *testing.T, version uint16) (client, server *tls.Config) {
	t.Helper()
	a := authority.New(t)
	pair := a.Issue(t, "db.test").Load(t)
	return &tls.Config{RootCAs: a.Pool(), ServerName: "db.test", MaxVersion: version, ClientSessionCache: tls.NewLRUClientSessionCache(1)},
		&tls.Config{Certificates: []tls.Certificate{pair}}
}

// both are two ends that have shaken hands and are off their sockets. Session tickets,
// which TLS 1.3 sends behind the handshake, are on their way to the client.
func both(t *testing.T, version uint16) (client, server *secure.Conn) {
	t.Helper()
	a, b := sockets(t)
	forClient, forServer := configs(t, version)
	_ = a.SetDeadline(time.Now().Add(stack.Patience))
	client, server = secure.Client(a, forClient), secure.Server(b, nil, forServer)
	done := make(chan error, 1)
	go func() { done <- server.Handshake() }()
	if err := errors.Join(client.Handshake(), <-done); err != nil {
		t.Fatal(err)
	}
	client.Detach()
	server.Detach()
	// They were sent before the handshake was over: they are there, if TLS has not read
	// them by now.
	_ = a.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	tickets, err := io.ReadAll(a)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	opens(t, client, tickets, "", nil)
	return client, server
}

// opens opens what was received, which says something and ends with an error.
func opens(t *testing.T, c *secure.Conn, received []byte, want string, end error) (answer []byte) {
	t.Helper()
	plain, answer, err := c.Open(nil, nil, received)
	if string(plain) != want || !errors.Is(err, end) {
		t.Fatalf("%d bytes are opened as %d (%.20q), %v; want %d (%.20q), %v", len(received), len(plain), plain, err, len(want), want, end)
	}
	return answer
}

func seal(t *testing.T, c *secure.Conn, said string) []byte {
	t.Helper()
	sealed, err := c.Seal(nil, []byte(said))
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

var versions = map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

// Records may be cut anywhere; what a whole one says is there at once.
func TestRecordsAreCut(t *testing.T) {
	for name, version := range versions {
		t.Run(name, func(t *testing.T) {
			client, server := both(t, version)
			const said = "a record"
			two := func() []byte { return append(seal(t, client, said), seal(t, client, said)...) }
			first := two()
			size := len(first)
			opens(t, server, first, said+said, nil)
			for at := range size {
				sealed, want := two(), ""
				if at >= size/2 {
					want = said
				}
				opens(t, server, sealed[:at], want, nil)
				opens(t, server, sealed[at:], (said + said)[len(want):], nil)
			}
			for i, b := range two() {
				want := ""
				if (i+1)%(size/2) == 0 {
					want = said
				}
				opens(t, server, []byte{b}, want, nil)
			}
		})
	}
}

// What is longer than a record goes into several, and comes out as one piece.
func TestManyRecords(t *testing.T) {
	for name, version := range versions {
		t.Run(name, func(t *testing.T) {
			client, server := both(t, version)
			for _, size := range []int{1, 16<<10 - 1, 16 << 10, 16<<10 + 1, 64 << 10, 1 << 20} {
				said := string(bytes.Repeat([]byte{'x'}, size))
				sealed := seal(t, client, said)
				if records := (size + 16<<10 - 1) / (16 << 10); len(sealed) > size+records*40 {
					t.Errorf("%d bytes take %d in records", size, len(sealed))
				}
				opens(t, server, sealed, said, nil)
				opens(t, client, seal(t, server, said), said, nil)
			}
		})
	}
}

// What came before Detach is not lost, whether TLS has read it or not.
func TestReadAhead(t *testing.T) {
	a, b := sockets(t)
	forClient, forServer := configs(t, tls.VersionTLS13)
	client := tls.Client(a, forClient)
	done := make(chan error, 1)
	go func() {
		_, err := io.WriteString(client, "first")
		if err == nil {
			_, err = io.WriteString(client, "second")
		}
		done <- err
	}()
	first := make([]byte, 1)
	if _, err := io.ReadFull(b, first); err != nil {
		t.Fatal(err)
	}
	server := secure.Server(b, first, forServer)
	one := make([]byte, 1)
	if _, err := server.Read(one); err != nil || one[0] != 'f' {
		t.Fatalf("%q, %v", one, err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	server.Detach()
	plain, _, err := server.Open(nil, nil, nil)
	for err == nil && len(plain) < len("irstsecond") {
		received := make([]byte, 1<<10)
		n, failed := b.Read(received)
		if failed != nil {
			t.Fatal(failed)
		}
		plain, _, err = server.Open(plain, nil, received[:n])
	}
	if string(plain) != "irstsecond" || err != nil {
		t.Errorf("behind the first byte comes %q, %v", plain, err)
	}
}

// An end is told, once, and nothing is said behind it.
func TestTheEnd(t *testing.T) {
	for name, version := range versions {
		t.Run(name, func(t *testing.T) {
			client, server := both(t, version)
			sealed := seal(t, client, "the last")
			sealed, err := client.SealClose(sealed)
			if err != nil {
				t.Fatal(err)
			}
			if more, _ := client.SealClose(nil); len(more) > 0 {
				t.Error("the end is told twice")
			}
			if _, err := client.Seal(nil, []byte("more")); err == nil {
				t.Error("something is said behind the end")
			}
			opens(t, server, sealed, "the last", io.EOF)
			opens(t, server, nil, "", io.EOF)
			// The other way is open still.
			opens(t, client, seal(t, server, "an answer"), "an answer", nil)
		})
	}
}

// What somebody has changed is refused, and the peer is told why.
func TestARecordIsChanged(t *testing.T) {
	for name, version := range versions {
		t.Run(name, func(t *testing.T) {
			client, server := both(t, version)
			good := seal(t, client, "good")
			bad := seal(t, client, "bad")
			bad[len(bad)-1]++
			plain, answer, err := server.Open(nil, nil, append(good, bad...))
			if string(plain) != "good" || err == nil || errors.Is(err, io.EOF) {
				t.Fatalf("opened as %q, %v", plain, err)
			}
			_, _, err = client.Open(nil, nil, answer)
			if alert := tls.AlertError(0); err == nil || !errors.As(err, &alert) && err.Error() != "remote error: tls: bad record MAC" {
				t.Errorf("the peer is told: %v", err)
			}
			if _, err := server.Seal(nil, []byte("more")); err == nil {
				t.Error("something is said behind the alert")
			}
		})
	}
}

// Keys are changed when the peer wants it, and TLS's own answer is there to be sent.
func TestKeyUpdate(t *testing.T) {
	a, b := sockets(t)
	forClient, forServer := configs(t, tls.VersionTLS13)
	server := secure.Server(b, nil, forServer)
	done := make(chan error, 1)
	go func() { done <- server.Handshake() }()
	keys, client := stack.NewKeyUpdater(t, a, forClient)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	server.Detach()
	for range 3 {
		answer := opens(t, server, keys.Data(keys.Update(t, keys.Data(nil, []byte("old "))), []byte("new")), "old new", nil)
		if len(answer) == 0 {
			t.Fatal("the update has no answer")
		}
		if _, err := b.Write(append(answer, seal(t, server, "reply")...)); err != nil {
			t.Fatal(err)
		}
		reply := make([]byte, len("reply"))
		if _, err := io.ReadFull(client, reply); err != nil || string(reply) != "reply" {
			t.Fatalf("%q, %v", reply, err)
		}
	}
}

// Whatever becomes of the records on their way, what is opened is the beginning of what
// was said, and all of it only if nothing was changed.
func FuzzOpen(f *testing.F) {
	f.Add(true, uint16(100), uint16(7), uint16(0), byte(0))
	f.Add(true, uint16(40_000), uint16(16_405), uint16(3), byte(1))
	f.Add(false, uint16(1), uint16(1), uint16(1), byte(0x80))
	f.Add(false, uint16(60_000), uint16(300), uint16(16_500), byte(0xff))
	f.Fuzz(func(t *testing.T, modern bool, size, cut, at uint16, change byte) {
		version := uint16(tls.VersionTLS12)
		if modern {
			version = tls.VersionTLS13
		}
		client, server := both(t, version)
		said := bytes.Repeat([]byte("0123456789"), int(size)/10+1)
		sealed := seal(t, client, string(said))
		sealed[int(at)%len(sealed)] ^= change
		var plain []byte
		var end error
		for rest := sealed; len(rest) > 0 && end == nil; {
			n := min(int(cut)+1, len(rest))
			plain, _, end = server.Open(plain, nil, rest[:n])
			rest = rest[n:]
		}
		if !bytes.HasPrefix(said, plain) {
			t.Fatalf("something else is opened, of %d bytes", len(plain))
		}
		if whole := len(plain) == len(said); whole != (change == 0) || whole && end != nil {
			t.Errorf("with byte %d changed by %#x, %d bytes of %d are opened, %v", at, change, len(plain), len(said), end)
		}
	})
}

// deaf is a connection of which nothing is read.
type deaf struct {
	net.Conn
	over <-chan struct{}
}

func (d deaf) Read([]byte) (int, error) {
	<-d.over
	return 0, io.EOF
}

// A peer that says nothing, or takes nothing, keeps no place from another's handshake.
func TestHandshakesWithTheSilent(t *testing.T) {
	forClient, forServer := configs(t, tls.VersionTLS13)
	ctx, cancel := context.WithTimeout(t.Context(), stack.Patience)
	defer cancel()
	var silent sync.WaitGroup
	defer silent.Wait()
	for range 2 * runtime.GOMAXPROCS(0) {
		a, b := sockets(t)
		silent.Go(func() { _ = secure.Client(a, forClient.Clone()).LimitedHandshake(ctx) })
		silent.Go(func() { _ = secure.Server(b, nil, forServer.Clone()).LimitedHandshake(ctx) })
		c, d := sockets(t)
		silent.Go(func() {
			if err := secure.Server(c, nil, forServer.Clone()).LimitedHandshake(ctx); err == nil {
				t.Error("a handshake with a silent client went well")
			}
		})
		defer d.Close()
		e, f := net.Pipe() // which keeps nothing on the way
		silent.Go(func() { _ = secure.Client(deaf{e, ctx.Done()}, forClient.Clone()).LimitedHandshake(ctx) })
		silent.Go(func() { _ = secure.Server(f, nil, forServer.Clone()).LimitedHandshake(ctx) })
	}
	a, b := sockets(t)
	done := make(chan error, 1)
	go func() { done <- secure.Server(b, nil, forServer.Clone()).LimitedHandshake(ctx) }()
	if err := errors.Join(secure.Client(a, forClient.Clone()).LimitedHandshake(ctx), <-done); err != nil {
		t.Error(err)
	}
	cancel()
}
