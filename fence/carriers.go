package fence

import "fmt"

// A fence is carried as text in the caller's own session, transaction or statement, which
// every driver sends alike: Exec of pgx and ExecContext of database/sql, without arguments.
// The text has no quote and no comment delimiter, as String says, so nothing is to be escaped.

// Variable is the name of the session variable, and of the key in a comment.
const Variable = "wirefence.token"

// Session returns the statement that sets the fence for a session, in place of a former one,
// until the session sets another or runs RESET wirefence.token:
//
//	_, err := conn.Exec(ctx, f.Session())        // a *pgx.Conn
//	_, err := conn.ExecContext(ctx, f.Session()) // a *sql.Conn
//
// A connection that goes back to a pool keeps the fence: run it on a connection of your own,
// and never on the pool itself. It panics if f is zero.
func (f Fence) Session() string { return "SET " + Variable + " = '" + f.text() + "'" }

// Transaction returns the statement that sets the fence for the transaction that it runs in,
// in place of the session's:
//
//	_, err := tx.Exec(ctx, f.Transaction())        // a pgx.Tx
//	_, err := tx.ExecContext(ctx, f.Transaction()) // a *sql.Tx
//
// Outside a transaction it sets nothing, and PostgreSQL only warns. It panics if f is zero.
func (f Fence) Transaction() string { return "SET LOCAL " + Variable + " = '" + f.text() + "'" }

// Comment returns the fence as the SQL comment that a Wirefence proxy reads, to be appended to
// a statement or to several in one text:
//
//	db.Exec(ctx, sql+f.Comment(), args...)
//
// It begins with a newline, so that it isn't taken into a comment with which the text ends
// (-- like this). Don't put it in front: drivers look there for COPY, and pg_hint_plan for its
// hints. Each grant gives another text, and so another prepared statement if the driver
// prepares its statements. It panics if f is zero.
func (f Fence) Comment() string { return "\n/*" + Variable + "='" + f.text() + "'*/" }

// MaxNameBytes is the longest application_name that PostgreSQL keeps, in bytes.
const MaxNameBytes = 63

// Name returns the fence as an application_name, for a session, where an operator has switched
// that on for the database:
//
//	config.RuntimeParams["application_name"] = name // of a *pgx.ConnConfig
//
// The label stands behind the fence, as far as there is room. Name fails if the fence has more than
// MaxNameBytes with what is around it. The database refuses a row there whose key has capitals. It
// panics if f is zero.
func (f Fence) Name(label string) (string, error) {
	name := []byte("wirefence:")
	text := f.text()
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '%': // an escape is the same byte in either case
			name = append(name, text[i:i+3]...)
			i += 2
		case 'A' <= c && c <= 'Z':
			name = fmt.Appendf(name, "%%%02x", c)
		default:
			name = append(name, c)
		}
	}
	name = append(name, '~')
	if len(name) > MaxNameBytes {
		return "", fmt.Errorf("the fence has %d bytes as an application_name, %s, of which PostgreSQL keeps %d", len(name), name, MaxNameBytes)
	}
	name = append(name, label...)
	return string(name[:min(len(name), MaxNameBytes)]), nil
}

// Check returns the statement that checks the fence without a proxy or a guarded table: if it
// succeeds, what its transaction writes afterwards commits only while the tokens are current.
//
//	_, err := tx.Exec(ctx, f.Check())        // a pgx.Tx
//	_, err := tx.ExecContext(ctx, f.Check()) // a *sql.Tx
//
// A refusal carries its SQLSTATE; ask IsStale and its like. It panics if f is zero.
func (f Fence) Check() string {
	// The comment is for a proxy that lets statements without a fence only read: it would keep
	// the check from recording the token, and so from refusing an older token or a second use.
	return "SELECT wirefence.check('" + f.text() + "')" + f.Comment()
}

// text panics for a fence that was never made, as after an error that was ignored: the empty
// text would set no fence, and writes could pass without one.
func (f Fence) text() string {
	if f.IsZero() {
		panic("fence: a zero Fence can't be carried")
	}
	return f.String()
}
