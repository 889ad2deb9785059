package main

import "context"

// background is work in a goroutine of its own.
type background struct {
	stop context.CancelFunc
	over chan struct{} // closed when the work has returned; nil before start
}

// start runs work until the context ends or end is called.
func (b *background) start(ctx context.Context, work func(context.Context)) {
	ctx, b.stop = context.WithCancel(ctx)
	over := make(chan struct{})
	b.over = over
	go func() {
		defer close(over)
		work(ctx)
	}()
}

// end stops the work and waits for its return. Without a start it does nothing.
func (b *background) end() {
	if b.over == nil {
		return
	}
	b.stop()
	<-b.over
}
