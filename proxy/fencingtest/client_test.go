package fencingtest

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
)

const (
	stale       = "orders=33"
	insert      = "insert into jobs values (33)"
	behindStale = " /*wirefence.token='" + stale + "'*/"
	behindGood  = " /*wirefence.token='orders=34'*/"

	// enter is a function of the user that sets the variable.
	enter = `create function enter(fence text) returns text language sql volatile
		as $$ select set_config('wirefence.token', fence, false) $$;`
)

// insertOf is a write that says with which token it was made.
func insertOf(token int) string { return fmt.Sprintf("insert into jobs values (%d)", token) }

// comment carries a token.
func comment(token int) string { return fmt.Sprintf(" /*wirefence.token='orders=%d'*/", token) }

// setLocal sets a token for a transaction.
func setLocal(token int) string { return fmt.Sprintf("set local wirefence.token = 'orders=%d'", token) }

// client is a client of the proxy.
type client struct {
	*stack.Client
	attempt bool  // what is refused on the way is noted; behind it anything may fail
	refusal error // the first of these
}

// protocol is a way to run one statement.
type protocol struct {
	name string
	run  func(c *client, sql string) error
}

var protocols = []protocol{
	{"simple", func(c *client, sql string) error { return c.Simple(sql) }},
	{"extended", func(c *client, sql string) error { return c.Extended(sql) }},
	{"prepared", func(c *client, sql string) error { return c.Prepared(sql) }},
}

// note takes in an error on the way of an attempt, and says whether it may be.
func (c *client) note(err error) bool {
	if c.attempt && c.refusal == nil && (fence.IsRefusal(err) || stack.State(err) == "40001") {
		c.refusal = err
	}
	return err == nil || c.refusal != nil
}

// Must runs statements that succeed, as simple queries.
func (c *client) Must(statements ...string) {
	c.T.Helper()
	for _, sql := range statements {
		if err := c.Simple(sql); !c.note(err) {
			c.T.Fatalf("%s: %v", sql, err)
		}
	}
}

// Exchange sends messages and takes what comes up to the n-th ReadyForQuery.
func (c *client) Exchange(n int, messages ...pgproto3.FrontendMessage) []stack.Message {
	c.T.Helper()
	all := c.Client.Exchange(n, messages...)
	c.note(stack.Err(all))
	return all
}

// pipelined are extended queries, with a Sync for each empty text.
func pipelined(statements ...string) (all []pgproto3.FrontendMessage) {
	for _, sql := range statements {
		if sql == "" {
			all = append(all, &pgproto3.Sync{})
		} else {
			all = append(all, stack.Unnamed(sql)...)
		}
	}
	return all
}

// Messages that a client of one line can write.
func parseOf(name, sql string) *pgproto3.Parse { return &pgproto3.Parse{Name: name, Query: sql} }
func bindOf(portal, name string) *pgproto3.Bind {
	return &pgproto3.Bind{DestinationPortal: portal, PreparedStatement: name}
}
func executeOf(portal string) *pgproto3.Execute { return &pgproto3.Execute{Portal: portal} }
func closeOf(kind byte, name string) *pgproto3.Close {
	return &pgproto3.Close{ObjectType: kind, Name: name}
}

// queries are simple queries.
func queries(statements ...string) (all []pgproto3.FrontendMessage) {
	for _, sql := range statements {
		all = append(all, &pgproto3.Query{String: sql})
	}
	return all
}

// answers sends messages and returns the SQLSTATE of each of n answers, "" for success.
func answers(c *client, messages []pgproto3.FrontendMessage, n int) (states []string) {
	c.T.Helper()
	c.Send(messages...)
	for range n {
		states = append(states, stack.State(stack.Err(c.Ready(1))))
	}
	return states
}
