package fencingtest

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// flows are ways to send without a pause. Each statement numbers its answer.
var flows = []struct {
	name     string
	window   int // how many are sent ahead of their answers
	messages func(n int) []pgproto3.FrontendMessage
}{
	{"one by one", 1, simple("SELECT %d")},
	{"simple queries", 20, simple("SELECT %d")},
	{"batches", 20, func(n int) []pgproto3.FrontendMessage {
		return append(stack.Unnamed(fmt.Sprintf("SELECT %d", n)), &pgproto3.Sync{})
	}},
	{"blocks", 2, simple("BEGIN; SELECT %d", "SELECT %d", "SELECT %d; COMMIT")},
	{"longer blocks", 7, simple("BEGIN; SELECT %d", "SELECT %d", "SAVEPOINT s; SELECT %d", "SELECT %d; COMMIT")},
}

// simple sends one of the texts after the other.
func simple(texts ...string) func(n int) []pgproto3.FrontendMessage {
	return func(n int) []pgproto3.FrontendMessage {
		return []pgproto3.FrontendMessage{&pgproto3.Query{String: fmt.Sprintf(texts[n%len(texts)], n)}}
	}
}

// A takeover succeeds against a session that sends without a pause. That gets its answers in
// order until it is refused. (One that chains its transactions is never outside of one, and is ended.)
func TestPipelinesLetTakeoversIn(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w = w.own(t, proxy.Options{})
		for _, flow := range flows {
			c := w.fenced(t, "orders=34", "user", "app")
			c.Must("SELECT 1", "SELECT 2", "SELECT 3") // now it holds
			sent := 0
			send := func() {
				c.Send(flow.messages(sent)...)
				sent++
			}
			for range flow.window {
				send()
			}
			var r *rival
			began, refused := time.Now(), false
			for answered := 0; !refused && time.Since(began) < stack.Patience; answered++ {
				all := c.Ready(1)
				err := stack.Err(all)
				switch {
				case err == nil && fmt.Sprint(stack.Column(all)) != "["+strconv.Itoa(answered)+"]":
					t.Fatalf("%s: answer %d is %v", flow.name, answered, stack.Column(all))
				case err != nil && (r == nil || stack.State(err) != "WF001"):
					t.Fatalf("%s: answer %d: %v", flow.name, answered, err)
				}
				refused = err != nil
				if r == nil && time.Since(began) > time.Second {
					r = w.rival(t)
				}
				send()
			}
			if !refused {
				t.Fatalf("%s: never refused", flow.name)
			}
			r.within(t, defaultPreempt/2)
			c.Close()
			w.back(t)
		}
	})
}
