package api

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/effect"
)

// The bounds of an effect's duration. The default is less than the default preempt_after.
const (
	minEffect      = 100 * time.Millisecond
	maxEffect      = time.Minute
	standardEffect = 3 * time.Second
)

// StandardEffects is the default of Options.MaxEffects. Each effect takes a connection of
// Options.Effects.
const StandardEffects = 32

// The outcomes of the last effects are kept, so that a caller that got no answer can ask
// again.
const (
	keptFor  = 5 * time.Minute
	keptLast = 10_000
)

// openEffects are the effects that are open, and the outcomes of the last ones.
type openEffects struct {
	places chan struct{} // has an element for each effect that is open or begins

	mu    sync.Mutex
	all   map[string]*openEffect
	ended []*openEffect // in the order of their ends
	idle  chan struct{} // closed when none is open; nil unless await waits
}

// openEffect is an effect that a caller has begun.
type openEffect struct {
	id    string
	fence fence.Fence
	began time.Time
	timer *time.Timer
	close func(why error) outcome // once: the first call decides
}

// outcome is the result of an effect.
type outcome struct {
	held time.Duration
	lost error // why the fence did not hold to the end; nil if it did
}

func newOpenEffects(limit int) *openEffects {
	return &openEffects{places: make(chan struct{}, limit), all: map[string]*openEffect{}}
}

// take takes a place, if one is free.
func (e *openEffects) take() bool {
	select {
	case e.places <- struct{}{}:
		return true
	default:
		return false
	}
}

func (e *openEffects) giveBack() {
	e.mu.Lock()
	defer e.mu.Unlock()
	<-e.places
	if e.idle != nil && len(e.places) == 0 {
		close(e.idle)
		e.idle = nil
	}
}

// add registers an effect whose place is taken. It ends at the latest when its time is over or
// its check is lost.
func (e *openEffects) add(f fence.Fence, guard *effect.Guard, within time.Duration) *openEffect {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	o := &openEffect{id: hex.EncodeToString(id), fence: f, began: time.Now()}
	held := guard.Context()
	var once sync.Once
	var end outcome
	o.close = func(why error) outcome {
		once.Do(func() {
			end = outcome{lost: errors.Join(why, guard.End())}
			end.held = time.Since(o.began)
			guard = nil // and its connection
			e.note(o)
			o.timer.Stop()
			e.giveBack()
		})
		return end
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all[o.id] = o
	o.timer = time.AfterFunc(within, func() { o.close(fmt.Errorf("it has taken longer than max_seconds, %v", within)) })
	context.AfterFunc(held, func() { o.close(nil) })
	return o
}

// note keeps an effect that has ended, and forgets the oldest.
func (e *openEffects) note(o *openEffect) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = append(e.ended, o)
	for len(e.ended) > keptLast || len(e.ended) > 0 && time.Since(e.ended[0].began) > keptFor+maxEffect {
		delete(e.all, e.ended[0].id)
		e.ended = e.ended[1:]
	}
}

func (e *openEffects) find(id string) *openEffect {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.all[id]
}

// await returns when no effect is open, or the context has ended.
func (e *openEffects) await(ctx context.Context) error {
	e.mu.Lock()
	if len(e.places) == 0 {
		e.mu.Unlock()
		return nil
	}
	if e.idle == nil {
		e.idle = make(chan struct{})
	}
	idle := e.idle
	e.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// closeAll ends what is open. No effect may begin any more.
func (e *openEffects) closeAll(why error) {
	e.mu.Lock()
	var open []*openEffect
	for _, o := range e.all {
		open = append(open, o)
	}
	e.mu.Unlock()
	var closing sync.WaitGroup
	for _, o := range open {
		closing.Go(func() { o.close(why) })
	}
	closing.Wait()
}

// AwaitEffects returns when no effect is open, or with the context's error. Drain before:
// then none begins any more, and each ends within a minute.
func (s *Server) AwaitEffects(ctx context.Context) error { return s.effects.await(ctx) }

type checkRequest struct {
	Fence string `json:"fence"`
}

type checked struct {
	Fence string `json:"fence"`
}

func (s *Server) check(w http.ResponseWriter, r *http.Request, _ fence.Resource) error {
	request, err := read[checkRequest](w, r)
	if err != nil {
		return err
	}
	f, err := wantFence(request.Fence)
	if err != nil {
		return err
	}
	if s.options.Effects == nil {
		return errNoDatabase
	}
	if err := effect.Once(r.Context(), s.options.Effects, f); err != nil {
		return refused(err)
	}
	return write(w, checked{f.String()})
}

type effectRequest struct {
	Fence string   `json:"fence"`
	Max   *seconds `json:"max_seconds"`
}

type begunEffect struct {
	ID        string  `json:"effect_id"`
	Fence     string  `json:"fence"`
	Max       seconds `json:"max_seconds"`
	ExpiresIn seconds `json:"expires_in_seconds"`
}

func (s *Server) beginEffect(w http.ResponseWriter, r *http.Request, _ fence.Resource) error {
	came := time.Now()
	f, within, err := readEffect(w, r)
	if err != nil {
		return err
	}
	if s.options.Effects == nil {
		return errNoDatabase
	}
	if s.serving.Err() != nil {
		return errDraining
	}
	if !s.effects.take() {
		return &problem{Status: http.StatusTooManyRequests, Type: "too-many-effects", Detail: "This proxy has the maximum number of effects open. Try again later.", Retry: "1"}
	}
	guard, err := effect.Begin(r.Context(), s.options.Effects, f)
	if err != nil {
		s.effects.giveBack()
		return refused(err)
	}
	after := time.Since(came)
	s.metrics.effects.Inc()
	context.AfterFunc(guard.Context(), s.metrics.effects.Dec)
	o := s.effects.add(f, guard, within)
	if err = r.Context().Err(); err == nil {
		err = write(w, begunEffect{o.id, f.String(), seconds(within), seconds(after + within)})
	}
	if err != nil { // the caller doesn't get the effect's id
		o.close(err)
	}
	return err
}

// readEffect reads an effect's request: its fence and its longest duration.
func readEffect(w http.ResponseWriter, r *http.Request) (f fence.Fence, within time.Duration, err error) {
	request, err := read[effectRequest](w, r)
	if err != nil {
		return f, 0, err
	}
	within = standardEffect
	if request.Max != nil {
		within = time.Duration(*request.Max)
	}
	f, err = wantFence(request.Fence)
	return f, within, errors.Join(err, wantTime("max_seconds", seconds(within), minEffect, maxEffect))
}

type endedEffect struct {
	ID    string  `json:"effect_id"`
	Fence string  `json:"fence"`
	Held  seconds `json:"held_seconds"`
}

func (s *Server) endEffect(w http.ResponseWriter, r *http.Request, _ fence.Resource) error {
	if s.options.Effects == nil {
		return errNoDatabase
	}
	o := s.effects.find(r.PathValue("effect"))
	if o == nil {
		return &problem{Status: http.StatusNotFound, Type: "no-such-effect", Detail: "This proxy has no such effect: another proxy began it, or it ended too long ago. It isn't known whether the fence held until the effect had ended."}
	}
	end := o.close(nil)
	if end.lost != nil {
		s.logOf(r).Info("an effect's check was lost", "fence", o.fence.String(), "after", end.held, "error", end.lost)
		return &problem{Status: http.StatusConflict, Type: "effect-lost", Detail: "The fence did not hold until the effect had ended, so another may have had the resource meanwhile: " + end.lost.Error() + "."}
	}
	return write(w, endedEffect{o.id, o.fence.String(), seconds(end.held)})
}

// wantFence parses a fence that names its resources.
func wantFence(text string) (fence.Fence, error) {
	if text == "" {
		return fence.Fence{}, badRequest("the field fence is missing: give one, such as orders=34")
	}
	f, err := fence.Parse(text)
	if err != nil {
		return f, badRequest("the field fence is malformed: %s", nameFault(err))
	}
	return f, nil
}

// refused returns the problem of a fence that the database refuses.
func refused(err error) error {
	state := fence.StateOf(err)
	if state == "" {
		return err
	}
	p := &problem{Status: http.StatusConflict, Type: "fence-refused", Detail: err.Error() + ".", SQLState: string(state)}
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok {
		p.Detail, p.Hint = refusal.Message+".", refusal.Hint
		if refusal.Detail != "" {
			p.Detail += " " + refusal.Detail
		}
	}
	return p
}
