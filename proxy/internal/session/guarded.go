package session

// What an application's own lock protects is guarded by triggers, which read the fences of the
// locks in wirefence.lease. A transaction keeps those that it began with: a token that was
// superseded meanwhile is refused there.

// guardedDue reports whether wirefence.lease has another value than guards should see. Behind a
// transaction pooler it would reach other clients.
func (s *Session) guardedDue() bool {
	return s.cfg.Guarded != nil && !s.pooled && (s.guarded.lost || s.guarded.by != s.cfg.Guarded())
}

// setGuarded sets wirefence.lease ahead of the client's message, which needn't wait for the answer.
func (s *Session) setGuarded(out *Out) {
	s.guarded = guarded{by: s.cfg.Guarded()}
	mark := len(out.own)
	out.own = s.appendExchange(out.own, setsGuarded, "SELECT pg_catalog.set_config('wirefence.lease', "+literal(s.guarded.by)+", false)")
	out.put(mark)
}
