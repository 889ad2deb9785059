package zookeeper

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/wirefence/wirefence/lockclient"
)

// unknown is the version of a resource's node when the store does not know whether, and
// with which token, it won the lease.
const unknown int32 = -2

// counter reads the token counter of a resource, and creates it if there is none.
func (x *session) counter(path string) (count int64, version int32, err error) {
	data, stat, err := x.conn.Get(path)
	for errors.Is(err, zk.ErrNoNode) {
		if err := x.makeNode(path, "0"); err != nil {
			return 0, 0, err
		}
		data, stat, err = x.conn.Get(path)
	}
	if err != nil {
		return 0, 0, err
	}
	count, err = parseCount(path, data)
	return count, stat.Version, err
}

func parseCount(path string, data []byte) (int64, error) {
	count, err := strconv.ParseInt(string(data), 10, 64)
	if err != nil || count < 0 {
		return 0, fmt.Errorf("%w: %s is not a number from 0 to 9223372036854775807", lockclient.ErrCounter, path)
	}
	return count, nil
}

// makeNode creates a persistent node and its parents, unless they exist.
func (x *session) makeNode(path, data string) error {
	_, err := x.conn.Create(path, []byte(data), zk.FlagPersistent, x.acl())
	if errors.Is(err, zk.ErrNoNode) {
		if err := x.makeNode(path[:strings.LastIndexByte(path, '/')], ""); err != nil {
			return err
		}
		_, err = x.conn.Create(path, []byte(data), zk.FlagPersistent, x.acl())
	}
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}

// create returns the requests that create the lease node of a grant in the session, in the
// place of another if there is one. Its data are ttl, a space, and the holder.
func (x *session) create(g *grant, ttl time.Duration, replaces bool) []any {
	path := leaseOf(g.key.path)
	node := &zk.CreateRequest{Path: path, Data: []byte(ttl.String() + " " + g.key.holder), Acl: x.acl(), Flags: zk.FlagEphemeral}
	if replaces {
		return []any{&zk.DeleteRequest{Path: path, Version: -1}, node}
	}
	return []any{node}
}

func parseLease(data []byte) (holder string, ttl time.Duration) {
	text, holder, _ := strings.Cut(string(data), " ")
	ttl, _ = time.ParseDuration(text)
	return holder, ttl
}

// catchUp makes the server of the session catch up with its leader.
func (x *session) catchUp(path string) error {
	_, err := x.conn.Sync(path)
	return err
}

// readLease reads the holder of a lease, and reports whether it is the holder of the grant. If
// so, it records the session of the lease node, nil for another store's, and a version of
// the resource's node by which a transaction can detect a later grant: the version is
// read first, and every grant changes it.
func (s *Store) readLease(x *session, g *grant) (mine bool, err error) {
	if err := x.catchUp(g.key.path); err != nil {
		return false, err
	}
	_, stat, err := x.conn.Get(g.key.path)
	if err == nil {
		var data []byte
		var lease *zk.Stat
		if data, lease, err = x.conn.Get(leaseOf(g.key.path)); err == nil {
			if holder, ttl := parseLease(data); holder == g.key.holder {
				if g.session == nil {
					g.until = time.Now().Add(ttl)
				}
				g.version = stat.Version
				s.setSession(g, s.sessionOf(lease.EphemeralOwner))
				return true, nil
			}
		}
	}
	if err == nil || errors.Is(err, zk.ErrNoNode) {
		s.setSession(g, nil)
		return false, nil
	}
	return false, err
}

// sessionOf returns the store's session with this id, nil if there is none.
func (s *Store) sessionOf(id int64) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.sessions {
		if x.conn.SessionID() == id {
			return x
		}
	}
	return nil
}
