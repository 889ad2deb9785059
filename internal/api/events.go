package api

import (
	"net/http"
	"time"

	"github.com/wirefence/wirefence/fence"
)

const (
	// standardStreams is how many event streams there may be at once.
	standardStreams = 256
	// writeTime bounds one write to a reader.
	writeTime = 10 * time.Second
	// retryAfter is the pause before a browser connects again.
	retryAfter = 2 * time.Second
)

// events streams the feed as server-sent events (WHATWG HTML, "Server-sent events"), until
// the reader goes, falls behind, or the server ends. The status, 200, is sent at once, so
// later errors can't be reported.
func (s *Server) events(w http.ResponseWriter, r *http.Request, _ fence.Resource) error {
	if _, err := parameters(r.URL.RawQuery); err != nil {
		return err
	}
	if s.options.Database == nil {
		return errNoDatabase
	}
	news, begin, start := s.feed.join(s.options.MaxStreams, r.Header.Get("Last-Event-ID"))
	if news == nil {
		return &problem{Status: http.StatusTooManyRequests, Type: "too-many-streams", Detail: "This proxy has the maximum number of event streams open. Try again later.", Retry: "10"}
	}
	defer s.feed.leave(news)
	if start {
		s.running.Go(func() { s.feed.run(s.open, s.options.Database) })
	}
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // for nginx, which would buffer events
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	heartbeats := time.NewTicker(s.feed.heartbeats)
	defer heartbeats.Stop()
	for text, open := begin, true; open; {
		if send(w, text) != nil {
			return nil
		}
		select {
		case text, open = <-news:
		case <-heartbeats.C:
			if !s.stillAdmits(r) {
				return nil
			}
			text = s.feed.heartbeat()
		case <-r.Context().Done():
			return nil
		case <-s.streaming.Done():
			return nil
		}
	}
	s.logOf(r).Info("event stream ended: its reader does not keep up")
	return nil
}

// send writes to a reader, within writeTime.
func send(w http.ResponseWriter, text []byte) error {
	control := http.NewResponseController(w)
	if err := control.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	return control.Flush()
}
