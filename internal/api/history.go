package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/wirefence/wirefence/fence"
)

// history is what the database keeps of handoffs and refusals, and how much it
// doesn't.
type history struct {
	Events     []fence.Event `json:"events"`
	Unrecorded int64         `json:"unrecorded_refusals"`
	Dropped    int64         `json:"dropped"`
}

func (s *Server) history(w http.ResponseWriter, r *http.Request, _ fence.Resource) error {
	filter, err := eventsOf(r.URL.RawQuery)
	if err != nil {
		return err
	}
	if s.options.Database == nil {
		return errNoDatabase
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeTime)
	defer cancel()
	events, err := fence.History(ctx, s.options.Database, filter)
	if err != nil {
		return err
	}
	totals, err := fence.TotalsOfHistory(ctx, s.options.Database)
	if err != nil {
		return err
	}
	return write(w, history{Events: append([]fence.Event{}, events...), Unrecorded: totals.Unrecorded, Dropped: totals.Dropped})
}

// eventsOf reads the parameters of the history.
func eventsOf(query string) (f fence.EventFilter, err error) {
	given, err := parameters(query, "resource", "since", "kind", "limit")
	if err != nil {
		return f, err
	}
	if name, ok := given["resource"]; ok {
		if f.Resource, err = fence.ParseResource(name); err != nil {
			return f, badRequest("the parameter resource: %s", nameFault(err))
		}
	}
	if since, ok := given["since"]; ok {
		if f.Since, err = time.Parse(time.RFC3339, since); err != nil {
			return f, badRequest("the parameter since must be a time such as 2006-01-02T15:04:05Z")
		}
	}
	if kinds, ok := given["kind"]; ok {
		if f.Kinds, err = fence.ParseEventKinds(strings.Split(kinds, ",")); err != nil {
			return f, badRequest("the parameter kind: %v", err)
		}
	}
	f.Limit, err = limitOf(given)
	return f, err
}
