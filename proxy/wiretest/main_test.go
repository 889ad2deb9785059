// Package wiretest runs scenarios of the wire protocol on real servers, direct
// and through the proxy: the same bytes in, the same answers out, in the same
// order.
package wiretest

import (
	"flag"
	"os"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

// majors are the versions that every scenario runs on.
var majors []int

// fixture is what every database holds besides the schema wirefence: the token
// of orders is 34.
const fixture = `
CREATE TABLE t(id int PRIMARY KEY, v text);
CREATE SEQUENCE numbers;
CREATE FUNCTION write_one(int) RETURNS int LANGUAGE sql AS 'INSERT INTO public.t VALUES ($1, ''written'') RETURNING id';
CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 2 * $1';
CREATE FUNCTION say(text) RETURNS void LANGUAGE plpgsql AS 'BEGIN RAISE NOTICE ''%'', $1; END';
CREATE PROCEDURE commits() LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO public.t VALUES (101, 'before');
  COMMIT;
  INSERT INTO public.t VALUES (102, 'behind');
END $$;
SELECT wirefence.seal('orders', 34, 'holder');`

var suite = stack.Suite{Objects: fixture, Parallel: 4}

func TestMain(m *testing.M) {
	flag.Parse()
	majors = stack.Versions()
	os.Exit(suite.Run(m))
}

// place is a database of a test's own.
type place struct{ *stack.DB }

// at makes a database on the shared server of a version.
func at(t testing.TB, major int) *place {
	t.Helper()
	return &place{suite.Database(t, major)}
}

// rows returns what the table t holds.
func (pl *place) rows(t testing.TB) string {
	t.Helper()
	return stack.Value[string](t, pl.DB, `SELECT coalesce(string_agg(id || ':' || left(v, 40), ' ' ORDER BY id), '') FROM public.t`)
}
