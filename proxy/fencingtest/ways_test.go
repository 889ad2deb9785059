package fencingtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
)

// attempt is a way to hide a fence behind what PostgreSQL makes of bytes, names and encodings: a session
// that comes to carry token 33 writes to jobs. Afterwards the table must be empty. A busy session holds a
// fence of token 34 when the attempt begins.
type attempt struct {
	name string
	want string // the SQLSTATEs of which one must come
	run  func(c *client, w *world) error
}

// zombie makes the session carry the stale token.
func (c *client) zombie() { c.T.Helper(); c.Must("set wirefence.token = '" + stale + "'") }

// texts is an attempt of simple queries. One of them must be refused, at the latest the last.
func texts(all ...string) func(*client, *world) error {
	return func(c *client, _ *world) error {
		c.Must(all[:len(all)-1]...)
		return c.Simple(all[len(all)-1])
	}
}

func TestAttempts(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, w *world) {
		for _, a := range attempts {
			t.Run(a.name, func(t *testing.T) {
				c := w.begins(t)
				c.attempt = true
				err := a.run(c, w)
				if c.refusal != nil {
					err = c.refusal
				}
				if got := stack.State(err); !slices.Contains(strings.Split(a.want, " "), got) {
					t.Errorf("got %q, want %q (%v)", got, a.want, err)
				}
				_ = c.Simple("commit")
				c.Close()
				w.wantRows(t, 0)
				w.Exec(t, "truncate jobs")
			})
		}
	})
}

// PostgreSQL keeps 63 bytes of a name, so these two are the same to it.
var (
	longName  = strings.Repeat("n", 63)
	longNames = [2]string{longName + "-one", longName + "-two"}
)

// escaped is a literal and a comment where backslashes are escapes. Elsewhere the comment is part of a
// literal that another one follows.
const escaped = `insert into jobs values (33, '\'') /*wirefence.token='orders=33'*/ -- '`

var attempts = []attempt{
	{"NUL in a Query", "08P01", func(c *client, _ *world) error { c.zombie(); return c.Simple("select 1;\x00" + insert) }},
	{"NUL in a Query before the comment", "08P01", texts(insert + "\x00" + behindStale)},
	{"NUL in a Parse", "08P01 26000 34000 WF001 WF006", func(c *client, _ *world) error {
		c.zombie()
		return c.Batch(parseOf("a\x00b", "x\x00"+insert), bindOf("", "a"), executeOf(""))
	}},
	{"NUL in the name of a Bind", "08P01 26000 WF001", func(c *client, _ *world) error {
		c.zombie()
		return c.Batch(parseOf("w", insert), bindOf("p\x00q", "w\x00x"), executeOf("p"))
	}},
	{"NUL in the name of an Execute", "08P01 WF001", func(c *client, _ *world) error {
		c.zombie()
		return c.Batch(parseOf("w", insert), bindOf("p", "w"), executeOf("p\x00q"))
	}},
	{"NUL in the name of a Close", "08P01 WF001", func(c *client, _ *world) error {
		c.zombie()
		return c.Batch(parseOf("w", insert), closeOf('S', "w\x00x"), bindOf("", "w"), executeOf(""))
	}},
	{"statement by another name that is cut to the same", "WF001 WF006", func(c *client, _ *world) error {
		c.Exchange(1, parseOf(longNames[0], insert+behindStale), &pgproto3.Sync{})
		return c.Batch(bindOf("", longNames[1]), executeOf(""))
	}},
	{"portal by another name that is cut to the same", "WF001 WF006", func(c *client, _ *world) error {
		return c.Batch(parseOf("w", insert+behindStale), bindOf(longNames[0], "w"), executeOf(longNames[1]))
	}},
	{"statement that is replaced by a name that is cut to the same", "WF001 WF006", func(c *client, _ *world) error {
		c.Exchange(1, parseOf(longNames[0], "select 1"), &pgproto3.Sync{})
		c.Exchange(1, closeOf('S', longNames[1]), parseOf(longNames[1], insert), &pgproto3.Sync{})
		c.zombie()
		return c.Batch(bindOf("", longNames[0]), executeOf(""))
	}},
	{"statement by a name that conversion cuts", "WF001 WF006 26000", func(c *client, _ *world) error {
		c.Must("set client_encoding = latin1")
		e := strings.Repeat("\xe9", 40) // 80 bytes in the server's UTF8
		c.Exchange(1, parseOf(e+"1", insert+behindStale), &pgproto3.Sync{})
		return c.Batch(bindOf("", e+"2"), executeOf(""))
	}},
	{"comment behind a no-break space", "WF001 WF004", texts(insert + " /*\u00a0wirefence.token='" + stale + "'*/")},
	{"comment with a no-break space behind its key", "WF001 WF004", texts(insert + " /*wirefence.token\u00a0='" + stale + "'*/")},
	{"comment with a no-break space before its value", "WF001 WF004", texts(insert + " /*wirefence.token=\u00a0'" + stale + "'*/")},
	{"comment with typographic quotes", "WF004", texts(insert + " /*wirefence.token=‘" + stale + "’*/")},
	{"comment behind a byte order mark", "WF001 WF004", texts(insert + " --\ufeffwirefence.token='" + stale + "'")},
	{"comment in LATIN1", "WF001 WF004", texts("set client_encoding = latin1", insert+" /*\xa0wirefence.token='"+stale+"'*/")},
	{"escapes by SET", "WF001", texts("set standard_conforming_strings = off", `insert into jobs values (33, '\'') `+behindStale+` -- '`)},
	{"escapes by SET in the same message", "WF001", texts(`set standard_conforming_strings = off; insert into jobs values (33, '\')` + behindStale + ` -- '`)},
	{"quote-like byte in SJIS", "WF001", texts("set client_encoding = sjis", "insert into jobs values (33, E'\x83\x5c') "+behindStale+" -- '")},
	{"quote-like byte in BIG5", "WF001", texts("set client_encoding = big5", "insert into jobs values (33, E'\xa5\x5c') "+behindStale+" -- '")},
	{"quote-like byte in GBK", "WF001", texts("set client_encoding = gbk", "insert into jobs values (33, E'\x81\x5c') "+behindStale+" -- '")},
	{"quote-like byte in UHC", "22021 22P05", texts("set client_encoding = uhc", "insert into jobs values (33, E'\x81\x5c') "+behindStale+" -- '")},
	{"quote-like byte in JOHAB", "22021", texts("set client_encoding = johab", "insert into jobs values (33, E'\x88\x5c') "+behindStale+" -- '")},
	{"quote-like byte in GB18030", "WF001", texts("set client_encoding = gb18030", "insert into jobs values (33, E'\x81\x5c') "+behindStale+" -- '")},
	{"half a character before a quote", "22021", texts("set client_encoding = sjis", "insert into jobs values (33, '\x83') "+behindStale)},
	// Sent at once, so the proxy must read the last text before it knows the effect of the first.
	{"ahead: escapes by SET", "WF001 WF006", ahead(queries("set standard_conforming_strings = off", escaped))},
	{"ahead: escapes by an extended SET", "WF001 WF006", ahead(pipelined("set standard_conforming_strings = off", "", escaped, ""))},
	{"ahead: escapes by an extended SET of the same batch", "WF001 WF006", ahead(pipelined("set standard_conforming_strings = off", escaped, ""))},
	{"ahead: escapes by set_config", "WF001 WF006", ahead(queries("select set_config('standard_' || 'conforming_strings', 'off', false)", escaped))},
	{"ahead: escapes by pg_settings", "WF001 WF006", ahead(queries("update pg_settings set setting = 'off' where name like 'standard%conf%strings'", escaped))},
	{"ahead: a comment behind a byte of another encoding", "WF001 WF006", ahead(queries("set names 'sjis'", "insert into jobs values (33, E'\x83\x5c') /*wirefence.token='orders=33'*/ -- '"))},
}

// ahead is an attempt that sends all messages at once, in a session in which x reads.
func ahead(parts ...[]pgproto3.FrontendMessage) func(*client, *world) error {
	return func(c *client, _ *world) error {
		c.Exchange(1, parseOf("x", "select 1"), &pgproto3.Sync{})
		messages, answers := slices.Concat(parts...), 0
		for _, m := range messages {
			switch m.(type) {
			case *pgproto3.Query, *pgproto3.Sync:
				answers++
			}
		}
		return stack.Err(c.Exchange(answers, messages...))
	}
}

// A check in a READ ONLY transaction takes no lock, so it must not count once the transaction
// can write again.
func TestReadOnlySavepoint(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, w *world) {
		for i, test := range []struct {
			end string
			at  int // where the session comes to carry
		}{{"rollback to a", 0}, {"release a", 0}, {"release a", 1}, {"release a", 2}} {
			for _, isolation := range isolations {
				resource := fmt.Sprintf("%s:%d", isolation[:4], i)
				w.Seal(t, resource, 33)
				c := w.connect(t)
				c.Must("begin isolation level "+isolation, "select * from cell")
				w.Seal(t, resource, 34)
				steps := slices.Insert([]string{"savepoint a", "set transaction read only", "select random(), writes(1) where false", test.end, insert},
					test.at, "set wirefence.token = '"+resource+"=33'")
				c.attempt = true
				c.Must(steps...)
				if got := stack.State(c.refusal); got != "WF001" && got != "40001" {
					t.Errorf("%v, %s: %q", test, isolation, got)
				}
				_ = c.Simple("commit")
				c.Close()
			}
		}
		w.wantRows(t, 0)
	})
}
