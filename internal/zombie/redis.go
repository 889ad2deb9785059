package zombie

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// serveRedis serves one connection to Redis, which it owns. Commands that name a lock are messages.
func (t *tap) serveRedis(client net.Conn, to *url.URL) {
	t.keep(client)
	defer t.end(client)
	server, err := dialRedis(to)
	if err != nil {
		return
	}
	t.keep(server)
	defer t.end(server)
	number := t.connected()
	t.inSession(func() {
		_, _ = io.Copy(client, server)
		_ = client.Close()
	})
	for from := bufio.NewReader(client); ; {
		raw, words, err := readCommand(from)
		if err != nil {
			return
		}
		if slices.ContainsFunc(words, func(word string) bool { return slices.Contains(t.locks, word) }) {
			t.pass(&Message{Connection: number, Kind: commands, SQL: strings.Join(words, " "), starts: true})
		} else {
			t.pass(nil)
		}
		if _, err := server.Write(raw); err != nil {
			return
		}
	}
}

func dialRedis(to *url.URL) (net.Conn, error) {
	address := to.Host
	if to.Port() == "" {
		address = net.JoinHostPort(to.Hostname(), "6379")
	}
	if to.Scheme == "rediss" {
		return tls.Dial("tcp", address, nil)
	}
	return net.Dial("tcp", address)
}

// readCommand reads an array of bulk strings, as all client libraries send commands.
func readCommand(from *bufio.Reader) (raw []byte, words []string, err error) {
	var read bytes.Buffer
	count := func(kind byte) (n int) {
		line, refusal := from.ReadString('\n')
		read.WriteString(line)
		if n, err = strconv.Atoi(strings.Trim(line, string(kind)+"\r\n")); err == nil {
			err = refusal
		}
		if err == nil && (line[0] != kind || n < 0 || n > 512<<20) {
			err = errors.New("this is no command of a client library")
		}
		return n
	}
	for n := count('*'); n > 0 && err == nil; n-- {
		size := count('$')
		if err != nil {
			break
		}
		if _, err = io.CopyN(&read, from, int64(size)+2); err == nil {
			end := read.Len() - 2
			words = append(words, string(read.Bytes()[end-size:end]))
		}
	}
	return read.Bytes(), words, err
}
