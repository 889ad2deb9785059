package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/wirefence/wirefence/fence"
)

// An examination is costly for the servers, so only one runs at a time, and its report is
// used for examinationAge. It is bounded by examinationTime.
const (
	examinationAge  = 10 * time.Second
	examinationTime = time.Minute
)

// examination has the doctor's last run, or the one that is going on.
type examination struct {
	mu   sync.Mutex
	last *finding
}

// finding is one run. Once done is closed, the rest is set.
type finding struct {
	done   chan struct{}
	at     time.Time
	report json.RawMessage
	err    error
}

// age is how long ago a run has ended; 0 for one that runs.
func (f *finding) age() time.Duration {
	select {
	case <-f.done:
		return time.Since(f.at)
	default:
		return 0
	}
}

// current returns the last run, or begins one if that is too old.
func (e *examination) current(run func(*finding)) *finding {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.last == nil || e.last.age() > examinationAge {
		e.last = &finding{done: make(chan struct{})}
		run(e.last)
	}
	return e.last
}

type examined struct {
	At     time.Time       `json:"at"`
	Report json.RawMessage `json:"report"`
}

func (s *Server) doctor(w http.ResponseWriter, r *http.Request, _ fence.Resource) error {
	if s.options.Doctor == nil {
		return errNoDatabase
	}
	extend(w, examinationTime+answerTime)
	f := s.examination.current(s.examine)
	select {
	case <-f.done:
	case <-r.Context().Done():
		return r.Context().Err()
	}
	if f.err != nil {
		return f.err
	}
	return write(w, examined{f.at.UTC(), f.report})
}

// examine runs to its end even if its caller goes: others may wait for it.
func (s *Server) examine(f *finding) {
	s.running.Go(func() {
		defer close(f.done)
		ctx, cancel := context.WithTimeout(s.open, examinationTime)
		defer cancel()
		f.report, f.err = s.options.Doctor(ctx)
		f.at = time.Now()
		if f.err == nil && !json.Valid(f.report) {
			f.err = errors.New("the doctor's report can't be read")
		}
	})
}
