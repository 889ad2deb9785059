package api

import (
	"net/http"
	"strings"
	"time"

	"github.com/wirefence/wirefence/fence"
)

// history has the recorded events, and the number of those that were not recorded.
type history struct {
	Events     []event `json:"events"`
	Unrecorded int64   `json:"unrecorded_refusals"`
	Dropped    int64   `json:"dropped"`
}

// event is an event of the history, with its tokens also as texts.
type event struct {
	fence.Event
	TokenText        string `json:"token_text,omitempty"`
	CurrentTokenText string `json:"current_token_text,omitempty"`
}

func eventOf(e fence.Event) event {
	out := event{Event: e}
	if e.Token != 0 {
		out.TokenText = e.Token.String()
	}
	if e.CurrentToken != 0 {
		out.CurrentTokenText = e.CurrentToken.String()
	}
	return out
}

func (s *Server) history(w http.ResponseWriter, r *http.Request, _ fence.Resource) error {
	filter, err := eventsOf(r.URL.RawQuery)
	if err != nil {
		return err
	}
	if s.options.Database == nil {
		return errNoDatabase
	}
	events, err := fence.History(r.Context(), s.options.Database, filter)
	if err != nil {
		return err
	}
	totals, err := fence.TotalsOfHistory(r.Context(), s.options.Database)
	if err != nil {
		return err
	}
	answer := history{Events: make([]event, len(events)), Unrecorded: totals.Unrecorded, Dropped: totals.Dropped}
	for i, e := range events {
		answer.Events[i] = eventOf(e)
	}
	return write(w, answer)
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
