package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// onGrant runs do with the grant of a holder, and adds to its error what failed.
func onGrant[T any](ctx context.Context, s *Store, doing string, resource fence.Resource, holder string, do func(*grant) (T, error)) (T, error) {
	return call(ctx, s, doing, resource, func() (value T, err error) {
		g, err := s.lockGrant(ctx, grantKey{s.Path(resource), holder})
		if err != nil {
			return value, err
		}
		defer s.unlockGrant(g)
		return do(g)
	})
}

// onSession repeats try with a session until its result is final, and adds to its error what
// failed.
func onSession[T any](ctx context.Context, s *Store, doing string, resource fence.Resource, try func(*session) (T, error)) (T, error) {
	return call(ctx, s, doing, resource, func() (T, error) {
		return repeat(ctx, func() (value T, err error) {
			x, err := s.anySession(ctx)
			if err != nil {
				return value, err
			}
			return try(x)
		})
	})
}

var errClosed = errors.New("the store is closed")

// call runs do, which sends requests, in a goroutine, because the driver has no contexts.
// It returns when ctx ends; do then continues until it succeeds or its request fails.
func call[T any](ctx context.Context, s *Store, doing string, resource fence.Resource, do func() (T, error)) (value T, err error) {
	if err := ctx.Err(); err != nil {
		return value, s.fail(ctx, doing, resource, err)
	}
	if !s.begin() {
		return value, s.fail(ctx, doing, resource, errClosed)
	}
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		defer s.running.Done()
		value, err := do()
		done <- outcome{value, err}
	}()
	select {
	case out := <-done:
		value, err = out.value, out.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		var none T
		return none, s.fail(ctx, doing, resource, err)
	}
	return value, nil
}

// begin counts a further goroutine that Close waits for. It returns false if the store is
// closed.
func (s *Store) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running.Add(1)
	return true
}

// fail adds to an error what failed and where. If the context has ended, its error is in
// the chain, and if there was no connection, the reason for that.
func (s *Store) fail(ctx context.Context, doing string, resource fence.Resource, err error) error {
	if errors.Is(err, zk.ErrNoAuth) || errors.Is(err, zk.ErrAuthFailed) {
		err = &lockclient.PermanentError{Err: err}
	}
	ctxErr := ctx.Err()
	if ctxErr != nil && !errors.Is(err, ctxErr) {
		err = fmt.Errorf("%w (%w)", ctxErr, err)
	}
	s.mu.Lock()
	failure := s.failure
	s.mu.Unlock()
	if failure != nil && (ctxErr != nil || isConnection(err)) {
		err = fmt.Errorf("%w (%w)", err, failure)
	}
	return fmt.Errorf("ZooKeeper at %s: %s %q: %w", strings.Join(s.opts.Servers, ","), doing, resource, err)
}

// repeatTimeout bounds how long requests are repeated while connections break or no server
// accepts the driver: an ensemble may need that long to elect a leader. retryPause is the
// pause between two tries.
const (
	repeatTimeout = 3 * time.Second
	retryPause    = 50 * time.Millisecond
)

// errAgain says that a node has changed since it was read.
var errAgain = errors.New("changed since it was read")

// repeat calls try until its result is final. It repeats errAgain without a limit: each
// means that another client has made progress.
func repeat[T any](ctx context.Context, try func() (T, error)) (T, error) {
	var none T
	failing := time.Now()
	for {
		value, err := try()
		switch {
		case errors.Is(err, errAgain):
			failing = time.Now()
		case isConnection(err) && time.Since(failing) < repeatTimeout:
			select {
			case <-time.After(retryPause):
			case <-ctx.Done():
			}
		default:
			return value, err
		}
		if err := ctx.Err(); err != nil {
			return none, err
		}
	}
}
