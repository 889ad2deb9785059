package session

import (
	"github.com/wirefence/wirefence/proxy/internal/replies"
	"github.com/wirefence/wirefence/proxy/internal/weave"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// Names of the proxy's own statements and portal. They are never the unnamed
// ones, which belong to the client from one message to the next.
const (
	refusalName = "_wirefence_refusal"
	asideName   = "_wirefence_aside"
	portalName  = "_wirefence"
)

// kind tells the prepared checks apart.
type kind uint8

const (
	forWrites kind = iota
	forReads
	behind
	kinds
)

var checkNames = [kinds]string{"_wirefence_check", "_wirefence_check_read", "_wirefence_check_behind"}

func kindOf(by weave.Carrier) kind {
	switch {
	case by.Reads:
		return forReads
	case by.Behind:
		return behind
	}
	return forWrites
}

// preparedCheck is the state of the prepared checks on the server.
type preparedCheck struct {
	ready [kinds]bool   // the server has confirmed it
	batch [kinds]uint32 // the batch in which it was last sent
	doubt bool          // something under way may have dropped them

	// The client has touched such a name: what goes by it is anybody's.
	shared bool
}

// putCheck puts Bind and Execute of the prepared check into the batch. It uses
// a portal of its own, since the client may have bound the unnamed one already.
func (s *Session) putCheck(by weave.Carrier, out *Out) {
	mark := len(out.own)
	what := kindOf(by)
	name := checkNames[what]
	if s.pool.on || s.check.shared || !(s.check.batch[what] == s.batch.id || s.check.ready[what] && !s.check.doubt) {
		// Behind a pooler what was prepared may be on another server connection.
		text := s.cfg.prepared[what]
		if s.pool.on {
			text = s.cfg.call.Unprepared(by)
		}
		out.own = wire.AppendClose(out.own, 'S', name)
		s.push(replies.Close, ours)
		out.own = wire.AppendParse(out.own, name, text)
		s.push(replies.Parse, oursParse+role(what))
		s.check.batch[what] = s.batch.id
	}
	params, n := s.cfg.call.Parameters(&by)
	out.own = wire.AppendBind(out.own, portalName, name, params[:n]...)
	s.push(replies.Bind, ours)
	out.own = wire.AppendExecute(out.own, portalName)
	s.push(replies.Execute, oursCheck)
	out.own = wire.AppendClose(out.own, 'P', portalName)
	s.push(replies.Close, ours)
	out.put(mark)
	s.events.Checked()
}

// putCommand puts a command of the proxy's own into the batch.
func (s *Session) putCommand(sql string, out *Out) {
	mark := len(out.own)
	out.own = s.appendCommand(out.own, sql, ours)
	out.put(mark)
}

// appendCommand appends a command that leaves nothing behind, as an extended
// query without a Sync.
func (s *Session) appendCommand(dst []byte, sql string, by role) []byte {
	// A check that failed has left its portal to the aborted transaction.
	dst = wire.AppendClose(dst, 'P', portalName)
	s.push(replies.Close, ours)
	dst = wire.AppendClose(dst, 'S', asideName)
	s.push(replies.Close, ours)
	dst = wire.AppendParse(dst, asideName, sql)
	s.push(replies.Parse, by)
	dst = wire.AppendBind(dst, portalName, asideName)
	s.push(replies.Bind, by)
	dst = wire.AppendExecute(dst, portalName)
	s.push(replies.Execute, by)
	dst = wire.AppendClose(dst, 'P', portalName)
	s.push(replies.Close, ours)
	dst = wire.AppendClose(dst, 'S', asideName)
	s.push(replies.Close, ours)
	return dst
}
