package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/follow"
)

// followLimit bounds the events of one look.
const followLimit = 1_000_000

// follower prints each event once.
type follower struct {
	follow.Follower
	asJSON bool
	w      io.Writer
}

// followHistory prints the recorded events, and each new one until ctx ends.
func followHistory(ctx context.Context, conn *pgx.Conn, filter fence.EventFilter, asJSON bool, w io.Writer) error {
	f := &follower{Follower: follow.Follower{Filter: filter}, asJSON: asJSON, w: w}
	f.Filter.Limit = followLimit
	for first := true; ; first = false {
		since, err := f.Since(ctx, conn)
		var fresh []fence.Event
		if err == nil {
			fresh, err = f.Events(ctx, conn, since)
		}
		if first && err == nil { // the filter's limit counts for the events that are there
			if fresh, err = fence.History(ctx, conn, filter); err == nil {
				f.Saw(fresh)
			}
		}
		if ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		if err := f.print(fresh, first); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(follow.Pause):
		}
	}
}

func (f *follower) print(all []fence.Event, heading bool) error {
	if f.asJSON {
		lines := json.NewEncoder(f.w)
		for _, e := range all {
			if err := lines.Encode(e); err != nil {
				return err
			}
		}
		return nil
	}
	var b strings.Builder
	if heading {
		fixedWidth(&b, eventHeading)
	}
	for _, e := range all {
		fixedWidth(&b, eventCells(e))
	}
	_, err := io.WriteString(f.w, b.String())
	return err
}

// eventWidths are those of the columns where the rows to come aren't known, but for
// the last.
var eventWidths = [...]int{24, 10, 20, 10, 10, 20, 32, 5}

func fixedWidth(b *strings.Builder, cells []string) {
	for i, width := range eventWidths {
		fmt.Fprintf(b, "%-*s  ", width, cells[i])
	}
	b.WriteString(cells[len(eventWidths)] + "\n")
}
