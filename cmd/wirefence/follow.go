package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/follow"
)

// followLimit bounds the events of one look.
const followLimit = 1_000_000

// followHistory prints the recorded events, and each new one until ctx ends.
func followHistory(ctx context.Context, nodes []node, filter fence.EventFilter, asJSON bool, w io.Writer) error {
	followers := make([]follow.Follower, len(nodes))
	for i := range followers {
		followers[i].Filter = filter
		followers[i].Filter.Limit = followLimit
	}
	for first := true; ; first = false {
		var fresh []eventJSON
		var err error
		for i, node := range nodes {
			var events []fence.Event
			if events, err = poll(ctx, &followers[i], node, first, filter); err != nil {
				break
			}
			fresh = append(fresh, node.events(events)...)
		}
		if ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		fresh = inOrder(fresh)
		if first {
			fresh = fresh[max(0, len(fresh)-filter.Limit):]
		}
		if err := printFresh(fresh, first, asJSON, w); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(follow.Pause):
		}
	}
}

// poll returns the events that are new, and the first time those that are there, for which the
// filter's limit counts.
func poll(ctx context.Context, f *follow.Follower, node node, first bool, filter fence.EventFilter) ([]fence.Event, error) {
	since, err := f.Since(ctx, node)
	if err != nil {
		return nil, err
	}
	fresh, err := f.Events(ctx, node, since)
	if !first || err != nil {
		return fresh, err
	}
	if fresh, err = fence.History(ctx, node, filter); err == nil {
		f.Saw(fresh)
	}
	return fresh, err
}

func printFresh(all []eventJSON, heading, asJSON bool, w io.Writer) error {
	if asJSON {
		lines := json.NewEncoder(w)
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
	_, err := io.WriteString(w, b.String())
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
