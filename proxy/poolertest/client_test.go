package poolertest

import (
	"fmt"
	"strconv"

	"github.com/wirefence/wirefence/internal/stack"
)

func (p *place) connect(addr string, params ...string) *stack.Client {
	p.t.Helper()
	return stack.Login(p.t, addr, p.Name, params...)
}

// leave has a client that goes past the proxy leave a setting to whoever gets the
// pooler's one server connection next.
func (p *place) leave(fence string) {
	p.t.Helper()
	c := p.connect(p.pooler(p.Addr(), one))
	c.Must("SET wirefence.token = '" + fence + "'")
	c.Close()
}

// hangUp ends the connection, and with it the transaction that it left open.
func hangUp(c *stack.Client) {
	c.T.Helper()
	if c.TxStatus() != 'I' {
		c.Must("ROLLBACK")
	}
	c.Close()
}

// protocols are the ways to run one statement that a transaction pooler has.
var protocols = map[string]func(*stack.Client, string) error{
	"simple":   (*stack.Client).Simple,
	"extended": func(c *stack.Client, sql string) error { return c.Extended(sql) },
}

// function is the object id of a function.
func (p *place) function(signature string) uint32 {
	p.t.Helper()
	return uint32(p.number("SELECT $1::regprocedure::oid::bigint", signature))
}

// insert is a write that says with which token it was made.
func insert(token int, rest string) string {
	return fmt.Sprintf("INSERT INTO jobs (token) VALUES (%d)%s", token, rest)
}

// comment carries a token.
func comment(token int) string { return fmt.Sprintf(" /*wirefence.token='orders=%d'*/", token) }
func itoa(n int) string        { return strconv.Itoa(n) }
