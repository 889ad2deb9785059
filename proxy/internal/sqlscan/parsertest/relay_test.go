package parsertest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// relay stands between a client and the server, and shows each simple query to
// ask before the server gets it. A client may open its next session before it
// ends the one that it has, as psql does; what is told and asked is told and asked
// of one session at a time: until the other one has ended, a query waits.
type relay struct {
	listener net.Listener
	server   string
	// ask sees a simple query of the session with a process id. finished is told that
	// the client sends something else, ended that the session has ended.
	ask      func(pid uint32, query string) error
	finished func()
	ended    func(pid uint32) error

	done     sync.WaitGroup
	mutex    sync.Mutex // held while something is told or asked
	alone    sync.Cond  // told when a session has ended
	sessions int
	err      error
}

// listen starts the relay on a free port of the loopback.
func (r *relay) listen() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	r.listener, r.alone.L = listener, &r.mutex
	r.done.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // closed
			}
			r.done.Go(func() {
				defer client.Close()
				if err := r.serve(client); err != nil {
					r.mutex.Lock()
					r.err = errors.Join(r.err, err)
					r.mutex.Unlock()
				}
			})
		}
	})
	return nil
}

// idle waits until there is no session any more.
func (r *relay) idle() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for r.sessions > 0 {
		r.alone.Wait()
	}
}

// close ends the relay, and returns what went wrong.
func (r *relay) close() error {
	r.listener.Close()
	r.done.Wait()
	return r.err
}

func (r *relay) port() int { return r.listener.Addr().(*net.TCPAddr).Port }

func (r *relay) serve(client net.Conn) error {
	server, err := net.Dial("tcp", r.server)
	if err != nil {
		return err
	}
	defer server.Close()
	startup, err := readMessage(client, 0)
	if err != nil {
		return nil // a client that changed its mind
	}
	if _, err := server.Write(startup); err != nil {
		return err
	}
	pid := r.start(client, server)
	if pid == 0 {
		return nil
	}
	r.mutex.Lock()
	r.sessions++
	r.mutex.Unlock()
	var answers sync.WaitGroup
	answers.Go(func() {
		_, _ = io.Copy(client, server)
		client.Close()
	})
	err = r.pass(client, server, pid)
	server.Close()
	answers.Wait()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	err = errors.Join(err, r.ended(pid))
	r.sessions--
	r.alone.Broadcast()
	return err
}

// pass passes on what the client sends, to its end.
func (r *relay) pass(client, server net.Conn, pid uint32) error {
	for {
		message, err := readMessage(client, 1)
		if err != nil {
			return nil
		}
		switch message[0] {
		case 'Q':
			r.mutex.Lock()
			for r.sessions > 1 {
				r.alone.Wait()
			}
			err = r.ask(pid, string(message[5:len(message)-1]))
			r.mutex.Unlock()
		case 'X', 'F', 'P': // the end, a fastpath call, an extended query
			r.mutex.Lock()
			r.finished()
			r.mutex.Unlock()
		}
		if err != nil {
			return err
		}
		if _, err := server.Write(message); err != nil {
			return nil
		}
	}
}

// start passes on the server's answer to the startup message, up to the first
// ReadyForQuery. The process id is 0 if the server refuses the session.
func (r *relay) start(client, server net.Conn) (pid uint32) {
	for {
		message, err := readMessage(server, 1)
		if err != nil {
			return 0
		}
		if _, err := client.Write(message); err != nil {
			return 0
		}
		switch message[0] {
		case 'K':
			pid = binary.BigEndian.Uint32(message[5:])
		case 'Z':
			return pid
		}
	}
}

// readMessage reads a whole message whose length stands at an offset.
func readMessage(conn net.Conn, offset int) ([]byte, error) {
	head := make([]byte, offset+4)
	if _, err := io.ReadFull(conn, head); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint32(head[offset:]))
	if size < 4 || size > 1<<28 {
		return nil, fmt.Errorf("a message of %d bytes", size)
	}
	message := append(head, make([]byte, size-4)...)
	_, err := io.ReadFull(conn, message[offset+4:])
	return message, err
}
