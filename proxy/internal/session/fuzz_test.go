package session

import (
	"testing"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

type silent struct{}

func (silent) Checked()                           {}
func (silent) Waited(Wait, time.Duration, string) {}
func (silent) Ran(time.Duration)                  {}
func (silent) Refused(Refusal)                    {}
func (silent) Trouble(error)                      {}
func (silent) Ended(Ending)                       {}

// logIn brings a session to where the client may send queries.
func logIn(s *Session) {
	var out Out
	ready := []byte{'Z', 0, 0, 0, 5, 'I'}
	s.FromServer(append([]byte{'R', 0, 0, 0, 8, 0, 0, 0, 0}, ready...), &out)
	for s.q.Len() > 0 || len(s.toServer) > 0 {
		s.TakeToServer()
		s.FromServer(append([]byte{'E', 0, 0, 0, 12, 'C', '4', '2', '5', '0', '1', 0, 0}, ready...), &out)
	}
}

// framed reports whether bytes for the server are messages; the last may be cut.
func framed(b []byte) bool {
	for len(b) >= wire.HeaderSize {
		_, size, _ := wire.Header(b)
		if size == 0 {
			return false
		}
		b = b[min(size, len(b)):]
	}
	return true
}

// FuzzSession feeds bytes to both sides in turns. Whatever comes, nothing may
// panic, no more may be used than was there, what goes to the server is framed,
// and what is kept must be bounded.
func FuzzSession(f *testing.F) {
	query := func(sql string) []byte { return wire.AppendQuery(nil, sql) }
	batch := wire.AppendSync(wire.AppendExecute(wire.AppendBind(wire.AppendParse(nil, "", "call p() /*wirefence.token='a=1'*/"), "", ""), ""))
	f.Add(query("insert into t values (1) /*wirefence.token='a=1'*/"), []byte{'C', 0, 0, 0, 13, 'S', 'E', 'L', 'E', 'C', 'T', ' ', '1', 0}, uint8(0))
	f.Add(query("set wirefence.token='a=1'"), []byte{'Z', 0, 0, 0, 5, 'T'}, uint8(1))
	f.Add([]byte{81, 0, 0, 0, 4}, []byte{}, uint8(0))
	f.Add(batch, []byte{'1', 0, 0, 0, 4, '2', 0, 0, 0, 4, 'E', 0, 0, 0, 5, 0}, uint8(2))
	f.Add([]byte{'F', 0, 0, 0, 14, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}, []byte{'G', 0, 0, 0, 7, 0, 0, 0, 'c', 0, 0, 0, 4}, uint8(3))
	f.Fuzz(func(t *testing.T, fromClient, fromServer []byte, policy uint8) {
		cfg := NewConfig(Config{
			Mode: Mode(policy % 3), RequireFence: policy&4 != 0, MaxStatement: 1 << 10, Pooling: Pooling(policy >> 6 % 3),
		})
		startup := &wire.Startup{Params: map[string]string{"user": "u"}}
		if policy&8 != 0 {
			startup.Params["replication"] = "database"
		}
		s := New(cfg, NewDatabases(time.Now), startup, silent{})
		if policy&16 == 0 {
			logIn(s)
		}
		if policy&32 != 0 {
			s.variable.set = true
		}
		var toServer, toClient Out
		var sent []byte
		most := 64<<10 + 4*(len(fromClient)+len(fromServer))
		for range 4 {
			used := s.FromClient(fromClient, &toServer)
			back, _ := s.FromServer(fromServer, &toClient)
			if used > len(fromClient) || back > len(fromServer) {
				t.Fatalf("used %d of %d and %d of %d bytes", used, len(fromClient), back, len(fromServer))
			}
			for _, b := range toServer.Buffers(nil) {
				if len(b) == 0 {
					t.Fatal("an empty buffer is to be sent")
				}
				sent = append(sent, b...)
			}
			if !framed(sent) {
				t.Fatalf("to the server go %q", sent)
			}
			if kept := len(s.toServer) + len(s.key) + len(toServer.own) + len(toClient.own); kept > most {
				t.Fatalf("%d bytes are kept", kept)
			}
			toClient.Buffers(nil)
			fromClient, fromServer = fromClient[used:], fromServer[back:]
		}
	})
}
