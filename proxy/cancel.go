package proxy

import (
	"context"
	"errors"

	"github.com/wirefence/wirefence/proxy/internal/upstream"
)

// forwardCancel passes a CancelRequest on to the server of the session that it
// names, encrypted as the session is. A session that isn't ours may be one of a
// process that served here before: then every server is told, of which only the
// right one knows the key. The client's connection stays open until the server
// has closed its own, which says that the signal is sent: what the client sends
// next can't be hit.
func (s *Server) forwardCancel(ctx context.Context, packet []byte) error {
	s.metrics.cancels.Inc()
	if route, ok := s.keys.Load(string(packet[8:])); ok {
		return s.upstream.Cancel(ctx, route.(upstream.Route), packet)
	}
	var failures []error
	told := map[*upstream.Host]bool{}
	for _, r := range s.upstream.Routes(upstream.Any, "") {
		if told[r.Host] {
			continue
		}
		err := s.upstream.Cancel(ctx, r, packet)
		told[r.Host] = err == nil
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}
