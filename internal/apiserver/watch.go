package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// Watch is a stream of the changes of one Lease. It is for one goroutine.
type Watch struct {
	body   io.ReadCloser
	events *json.Decoder
}

// Watch begins to watch a Lease behind the version of a look. It lasts until ctx ends, or the server
// ends it, as it does now and then. The caller closes it.
func (c *Client) Watch(ctx context.Context, namespace, name, version string) (*Watch, error) {
	query := selecting(name)
	query.Set("watch", "true")
	query.Set("resourceVersion", version)
	answer, err := c.ask(ctx, path(namespace)+"?"+query.Encode())
	if err != nil {
		return nil, err
	}
	return &Watch{answer.Body, json.NewDecoder(answer.Body)}, nil
}

// Next returns the next state of the Lease, and whether it is there. It returns io.EOF where the watch
// has ended, also where the server no longer knows the version behind which it began.
func (w *Watch) Next() (l Lease, exists bool, err error) {
	var event struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	if err := w.events.Decode(&event); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF
		}
		return l, false, err
	}
	switch event.Type {
	case "ADDED", "MODIFIED":
		l, err = readLease(event.Object)
		return l, err == nil, err
	case "DELETED":
		return l, false, nil
	}
	var status struct {
		Code int `json:"code"`
	}
	if err := json.Unmarshal(event.Object, &status); err == nil && status.Code == http.StatusGone {
		return l, false, io.EOF
	}
	return l, false, fmt.Errorf("the API server ends the watch: %s %s", event.Type, event.Object)
}

// Close ends the watch.
func (w *Watch) Close() { _ = w.body.Close() }
