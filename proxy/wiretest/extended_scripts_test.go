package wiretest

import "strings"

// Scripts of the extended protocol: pipelines, Flush, portals.
var extendedScripts = []script{
	{name: "01 pipeline with an insert that fails leaves no row", steps: []step{
		ready(1),
		synced(run("INSERT INTO t VALUES (1, 'a')"), run("INSERT INTO t VALUES (1, 'b')"), run("INSERT INTO t VALUES (2, 'c')")),
		simple("SELECT count(*) FROM t"),
	}},
	{name: "01 pipeline with a block of its own", steps: []step{
		ready(1),
		synced(run("BEGIN"), run("INSERT INTO t VALUES (1, 'a')"), run("COMMIT"), run("INSERT INTO t VALUES (2, 'b')")),
		synced(run("BEGIN"), run("INSERT INTO t VALUES (3, 'c')"), run("ROLLBACK"), run("INSERT INTO t VALUES (4, 'd')")),
	}},
	{name: "02 Parse, Describe, Flush are answered without a Sync", steps: []step{
		ready(1),
		send(parse("", "SELECT $1::int AS n, $2::text"), describe('S', ""), flush), until('T'),
		send(bind("", "", "7", "seven"), flush), until('2'),
		send(describe('P', ""), flush), until('T'),
		send(execute("", 0), flush), until('C'),
		send(sync_), ready(1),
	}},
	{name: "02 Flush behind each message of a write", steps: []step{
		ready(1),
		send(parse("w", "INSERT INTO t VALUES ($1, $2)"), flush), until('1'),
		send(describe('S', "w"), flush), until('n'),
		send(bind("", "w", "1", "a"), flush), until('2'),
		send(execute("", 0), flush), until('C'),
		send(bind("", "w", "2", "b"), flush), until('2'),
		send(execute("", 0), flush), until('C'),
		send(closing('S', "w"), flush), until('3'),
		send(sync_), ready(1),
	}},
	{name: "02 a Flush with nothing before it", steps: []step{
		ready(1), send(flush, flush), synced(flush, run("SELECT 1"), flush),
	}},
	{name: "03 a portal with a row limit lives on", steps: []step{
		ready(1),
		send(parse("", "SELECT generate_series(1, 5)"), bind("", ""), flush), until('2'),
		send(execute("", 2), flush), until('s'),
		send(execute("", 2), flush), until('s'),
		send(execute("", 2), flush), until('C'),
		send(sync_), ready(1),
	}},
	{name: "03 a portal across Syncs in a block", steps: []step{
		ready(1), simple("BEGIN"),
		synced(parse("", "SELECT generate_series(1, 5)"), bind("p", ""), execute("p", 2)),
		synced(run("INSERT INTO t VALUES (1, 'a')")),
		synced(execute("p", 2), describe('P', "p")),
		synced(execute("p", 0), closing('P', "p")),
		simple("COMMIT"), synced(execute("p", 1)),
	}},
	{name: "03 an insert's rows by a limit", steps: []step{
		ready(1),
		send(parse("", "INSERT INTO t SELECT i, 'r' FROM generate_series(1, 4) i RETURNING id"), bind("", ""), execute("", 1), flush), until('s'),
		send(execute("", 2), flush), until('s'),
		synced(execute("", 0)),
	}},
	{name: "04 a trailing Describe behind two Executes", steps: []step{
		ready(1),
		synced(parse("a", "SELECT 1"), parse("b", "INSERT INTO t VALUES (1, 'a') RETURNING v"),
			bind("pa", "a"), bind("pb", "b"), execute("pa", 0), execute("pb", 0), describe('S', "b"), describe('P', "pa")),
		synced(describe('S', "a"), describe('S', "b")),
	}},
	{name: "06 a second batch before the first is answered", steps: []step{
		ready(1),
		send(run("INSERT INTO t VALUES (1, 'a')"), sync_, run("INSERT INTO t VALUES (1, 'b')"), run("SELECT 1"), sync_, run("INSERT INTO t VALUES (2, 'c')"), sync_), ready(3),
	}},
	{name: "06 fifty batches in one go", large: true, steps: []step{ready(1), send(fifty()...), ready(50)}},
	{name: "06 a named statement is replaced in the batches ahead", steps: []step{
		ready(1),
		send(parse("s", "SELECT 1"), sync_, bind("", "s"), execute("", 0), sync_,
			closing('S', "s"), parse("s", "INSERT INTO t VALUES (1, 'a')"), sync_, bind("", "s"), execute("", 0), sync_,
			parse("s", "SELECT 2"), sync_, bind("", "s"), execute("", 0), sync_), ready(6),
	}},
	{name: "06 lone Syncs", steps: []step{
		ready(1), send(sync_), ready(1), send(sync_, sync_, sync_), ready(3), simple("SELECT 1"), send(sync_), ready(1),
	}},
	{name: "06 simple queries in a pipeline", steps: []step{
		ready(1),
		send(q("INSERT INTO t VALUES (1, 'a')"), q("SELECT 1/0"), q("BEGIN; INSERT INTO t VALUES (2, 'b')"), q("INSERT INTO t VALUES (2, 'c')"), q("COMMIT"), q("INSERT INTO t VALUES (3, 'd')")), ready(6),
	}},
	{name: "06 simple and extended in turn", steps: []step{
		ready(1),
		send(run("INSERT INTO t VALUES (1, 'a')"), sync_, q("INSERT INTO t VALUES (2, 'b'); SELECT count(*) FROM t"), run("SELECT count(*) FROM t"), sync_, q("SELECT 1")), ready(4),
	}},
	{name: "06 a Query closes what a batch left open", steps: []step{
		ready(1), send(run("SELECT 1"), q("SELECT 2")), ready(1), send(parse("", "SELECT 3"), q("SELECT 4"), bind("", "")), ready(1), synced(),
	}, checked: implicitEnds},
	{name: "statements with parameters of every form", steps: []step{
		ready(1),
		synced(parse("s", "SELECT $1::bytea, $2::int, $3::text IS NULL"), describe('S', "s")),
		synced(inBinary("s"), describe('P', ""), execute("", 0)),
		synced(run("SELECT $1::text", "with 'quotes' and \\ and Ü")),
	}},
	{name: "unnamed statement and portal live on", steps: []step{
		ready(1),
		synced(parse("", "SELECT $1::int")),
		synced(bind("", "", "1"), execute("", 0)), synced(bind("", "", "2"), execute("", 0)),
		simple("BEGIN"), synced(parse("", "INSERT INTO t VALUES (1, 'a')")), synced(bind("", "")), synced(execute("", 0)), simple("COMMIT"),
		synced(bind("", "")),
	}},
	{name: "Close of what there is and what there isn't", steps: []step{
		ready(1),
		synced(closing('S', "none"), closing('P', "none"), closing('S', ""), closing('P', "")),
		synced(parse("s", "SELECT 1"), closing('S', "s"), bind("", "s")),
	}},
	{name: "an empty statement", steps: []step{
		ready(1), synced(run("")), synced(run(";")), simple(""), simple(" ; ;"), simple("-- nothing"),
	}},
	{name: "a null write and a read in one batch", steps: []step{
		ready(1),
		synced(run("UPDATE t SET v = 'x' WHERE id = 99"), run("SELECT count(*) FROM t"), run("DELETE FROM t WHERE false")),
	}},
	{name: "14 parameter of 300 KB", large: true, steps: []step{
		ready(1),
		synced(run("INSERT INTO t VALUES (1, $1) RETURNING length(v)", strings.Repeat("x", 300_000))),
		synced(run("SELECT v FROM t")),
	}},
	{name: "14 text of 300 KB", large: true, steps: []step{
		ready(1),
		simple("INSERT INTO t VALUES (1, '" + strings.Repeat("y", 300_000) + "')"),
		synced(run("UPDATE t SET v = '" + strings.Repeat("z", 300_000) + "' RETURNING length(v)")),
	}},
	{name: "14 parameter of 20 MB", large: true, steps: []step{
		ready(1),
		synced(run("INSERT INTO t VALUES (1, $1) RETURNING length(v)", strings.Repeat("x", 20<<20))),
		synced(run("SELECT v FROM t")),
	}},
}

func fifty() (parts []any) {
	for i := range 50 {
		parts = append(parts, run("INSERT INTO t VALUES ($1, 'p') RETURNING 'row ' || id", string(rune('0'+i/10))+string(rune('0'+i%10))), sync_)
	}
	return parts
}
