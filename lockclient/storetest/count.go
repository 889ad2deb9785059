package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// count tests a store that is a lockclient.Counter.
func (s suite) count(t *testing.T) {
	x := s.session(t)
	counter, ok := x.store.(lockclient.Counter)
	if !ok {
		return
	}
	counted := func(atLeast fence.Token) fence.Token {
		t.Helper()
		count, err := counter.Counted(x.ctx, x.resource)
		if err != nil || count < atLeast {
			t.Errorf("counted are %d, %v, want at least %d", count, err, atLeast)
		}
		return count
	}
	before := counted(0)
	first := x.win("a", long)
	if first <= before {
		t.Errorf("the token %d doesn't exceed %d", first, before)
	}
	before = counted(first)
	x.wantRelease("a", true)
	if second := x.win("b", long); second <= before {
		t.Errorf("the token %d doesn't exceed %d", second, before)
	}
	const raised fence.Token = 1 << 40
	if err := x.store.Raise(x.ctx, x.resource, raised); err != nil {
		t.Fatal(err)
	}
	counted(raised)

	ctx, cancel := context.WithCancel(x.ctx)
	cancel()
	if _, err := counter.Counted(ctx, x.resource); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
}
