package proxy

import (
	"errors"
	"net"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// readStartup reads the client's first packets up to the one that asks for a
// session or a cancellation. What comes behind it stays in the buffer.
func readStartup(client net.Conn, in *buffer) (*wire.Startup, error) {
	asked := map[wire.StartupKind]bool{}
	for {
		packet, err := readPacket(client, in)
		if err != nil {
			return nil, reject(client, err)
		}
		startup, err := wire.ParseStartup(packet)
		if err != nil {
			return nil, reject(client, err)
		}
		switch startup.Kind {
		case wire.StartupSession:
			if startup.User() == "" {
				refuse(client, wire.Error{Code: "28000", Message: "no PostgreSQL user name specified in startup packet"})
				return nil, errors.New("no user name in startup packet")
			}
			return startup, nil
		case wire.StartupCancel:
			return startup, nil
		}
		if asked[startup.Kind] {
			return nil, reject(client, errors.New("encryption was asked for twice"))
		}
		asked[startup.Kind] = true
		if len(in.bytes()) > 0 {
			// What somebody in the middle put behind the request must not be
			// taken for the client's (CVE-2021-3935).
			return nil, reject(client, errors.New("received unencrypted data after an encryption request"))
		}
		if _, err := client.Write([]byte{'N'}); err != nil {
			return nil, err
		}
	}
}

// reject tells the client why its startup packet is refused. A connection that
// sent nothing at all, as a health check does, gets nothing.
func reject(client net.Conn, err error) error {
	var network net.Error
	if errors.As(err, &network) || errors.Is(err, errEmpty) {
		return err
	}
	code := "08P01"
	if version := (*wire.VersionError)(nil); errors.As(err, &version) {
		code = "0A000"
	}
	refuse(client, wire.Error{Code: code, Message: err.Error()})
	return err
}

var errEmpty = errors.New("the client closed the connection before its startup packet was whole")

func readPacket(client net.Conn, in *buffer) ([]byte, error) {
	for {
		size, err := wire.StartupSize(in.bytes())
		if err != nil {
			return nil, err
		}
		if size > 0 && len(in.bytes()) >= size {
			packet := append([]byte(nil), in.bytes()[:size]...)
			in.used(size)
			return packet, nil
		}
		if _, err := in.read(client); err != nil {
			return nil, errors.Join(errEmpty, err)
		}
	}
}
