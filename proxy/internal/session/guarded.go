package session

// What an application's own lock protects is guarded by triggers, which read the fences of the
// locks in wirefence.lease. A transaction keeps those that it began with: a token that was
// superseded meanwhile is refused there. Behind a transaction pooler, where the session's value would
// reach other clients, they are set for each transaction, by what goes ahead of its first statement.

// guardedDue reports whether wirefence.lease has another value than guards should see.
func (s *Session) guardedDue() bool {
	return s.cfg.Guarded != nil && (s.guarded.lost && !s.pooled || s.guarded.by != s.cfg.Guarded())
}

// setGuarded sets wirefence.lease ahead of the client's message, which needn't wait for the answer.
func (s *Session) setGuarded(out *Out) {
	s.guarded = guarded{by: s.cfg.Guarded()}
	s.fenced = s.fenced || s.guarded.by != ""
	if s.pooled {
		return
	}
	mark := len(out.own)
	out.own = s.appendExchange(out.own, setsGuarded, s.guarded.sql("false"))
	out.put(mark)
}

// sql returns the statement that sets wirefence.lease. In a batch SET LOCAL would warn in the server's log
// that there is no transaction block.
func (g *guarded) sql(local string) string {
	return "SELECT pg_catalog.set_config('wirefence.lease', " + literal(g.by) + ", " + local + ")"
}

// setsGuardedLocally reports whether wirefence.lease is to be set in each transaction.
func (s *Session) setsGuardedLocally() bool {
	return s.pooled && s.guarded.by != "" && s.hasSchema()
}

// putGuarded sets wirefence.lease for the transaction of the batch.
func (s *Session) putGuarded(out *Out) {
	mark := len(out.own)
	out.own = s.appendCloses(out.own) // a batch that failed may have left the statement
	out.own = s.appendCloses(s.appendRun(out.own, ours, s.guarded.sql("true")))
	out.put(mark)
}
