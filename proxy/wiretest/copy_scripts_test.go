package wiretest

import (
	"fmt"
	"strings"
)

// Scripts of COPY in both protocols.
var copyScripts = []script{
	{name: "07 COPY in, simple", steps: []step{
		ready(1), send(q("COPY t FROM STDIN")), until('G'), send(data("1\ta\n2\tb"), data("\n3\tc\n"), copyDone), ready(1), simple("SELECT count(*) FROM t"),
	}},
	{name: "07 COPY in, all sent ahead", steps: []step{
		ready(1), send(q("COPY t FROM STDIN"), data("1\ta\n"), copyDone, q("SELECT count(*) FROM t"), run("SELECT 1"), sync_), ready(3),
	}},
	{name: "07 COPY in, extended", steps: []step{
		ready(1), send(run("COPY t FROM STDIN"), flush), until('G'), send(data("1\ta\n"), copyDone, sync_), ready(1), simple("SELECT count(*) FROM t"),
	}},
	{name: "07 a Sync sent during copy-in has no answer", steps: []step{
		ready(1), send(run("COPY t FROM STDIN"), sync_), until('G'), send(data("1\ta\n"), sync_, flush, data("2\tb\n"), copyDone, sync_), ready(1),
		simple("SELECT count(*) FROM t"), send(sync_), ready(1),
	}},
	{name: "07 a Sync before the data, all sent ahead", steps: []step{
		ready(1), send(run("COPY t FROM STDIN"), sync_, data("1\ta\n"), copyDone, sync_, run("SELECT 1"), sync_), ready(2), simple("SELECT 2"),
	}},
	{name: "07 CopyFail, simple", steps: []step{
		ready(1), send(q("COPY t FROM STDIN")), until('G'), send(data("1\ta\n"), copyFail("no more")), ready(1), simple("SELECT count(*) FROM t"),
	}},
	{name: "07 CopyFail, extended", steps: []step{
		ready(1), send(run("COPY t FROM STDIN"), flush), until('G'), send(copyFail("no more"), run("SELECT 1"), sync_), ready(1), simple("SELECT count(*) FROM t"),
	}},
	{name: "07 CopyFail behind a Sync, and more ahead of the answers", steps: []step{
		ready(1), send(run("COPY t FROM STDIN"), data("1\ta\n"), sync_, copyFail("no more"), q("BEGIN"), copyFail("still"), sync_, q("ROLLBACK"), q("SELECT count(*) FROM t")), ready(3),
		simple("SELECT 1"),
	}},
	{name: "07 CopyFail behind a Sync", steps: []step{
		ready(1), send(run("COPY t FROM STDIN"), sync_), until('G'), send(data("1\ta\n"), copyFail("no more"), sync_), ready(1), simple("SELECT count(*) FROM t"),
	}},
	{name: "07 an error while the client sends, simple", steps: []step{
		ready(1), send(q("COPY t FROM STDIN")), until('G'), send(data("1\ta\n"), data("no number\tb\n"), data("3\tc\n")), until('E'),
		send(data("4\td\n"), data("5\te\n"), copyDone), ready(1), simple("SELECT count(*) FROM t"),
	}},
	{name: "07 an error while the client sends, extended", steps: []step{
		ready(1), send(run("COPY t FROM STDIN"), flush), until('G'), send(data("1\ta\n"), data("no number\tb\n")), until('E'),
		send(data("4\td\n"), copyDone, sync_), ready(1), simple("SELECT count(*) FROM t"),
	}},
	{name: "07 an error while the client sends, a Sync among the data", steps: []step{
		ready(1), send(run("COPY t FROM STDIN"), flush), until('G'),
		send(data("1\ta\n"), sync_, data("no number\tb\n"), sync_, data("4\td\n"), copyDone, sync_), ready(2), simple("SELECT count(*) FROM t"), send(sync_), ready(1),
	}},
	{name: "07 COPY that fails before it begins", steps: []step{
		ready(1), send(q("COPY nowhere FROM STDIN"), data("1\ta\n"), copyDone), ready(1),
		send(run("COPY nowhere FROM STDIN"), data("1\ta\n"), copyDone, sync_), ready(1), simple("SELECT 1"),
	}},
	{name: "07 COPY fails at its end", steps: []step{
		ready(1), send(q("COPY t FROM STDIN"), data("1\ta\n1\tb\n"), copyDone), ready(1), send(run("COPY t FROM STDIN"), data("1\ta\n1\tb\n"), copyDone, run("SELECT 1"), sync_), ready(1),
	}},
	{name: "07 COPY among statements", steps: []step{
		ready(1), send(q("INSERT INTO t VALUES (1, 'a'); COPY t FROM STDIN; SELECT count(*) FROM t")), until('G'), send(data("2\tb\n"), copyDone), ready(1),
		send(q("COPY t FROM STDIN; COPY t FROM STDIN; SELECT count(*) FROM t"), data("3\tc\n"), copyDone, data("4\td\n"), copyDone), ready(1),
		send(q("COPY t FROM STDIN; SELECT 1/0"), data("5\te\n"), copyDone), ready(1),
	}},
	{name: "07 two COPY in one batch", steps: []step{
		ready(1), send(run("COPY t FROM STDIN"), data("1\ta\n"), copyDone, run("COPY t FROM STDIN"), data("2\tb\n"), copyDone, run("SELECT count(*) FROM t"), sync_), ready(1),
	}},
	{name: "07 COPY in a block", steps: []step{
		ready(1), simple("BEGIN"), send(q("COPY t FROM STDIN"), data("1\ta\n"), copyDone), ready(1), send(run("COPY t FROM STDIN"), data("2\tb\n"), copyDone, sync_), ready(1), simple("ROLLBACK"),
	}},
	{name: "07 COPY out", steps: []step{
		ready(1), simple("INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 2000) i"), simple("COPY t TO STDOUT"), synced(run("COPY t TO STDOUT")),
		simple("COPY (SELECT * FROM t ORDER BY id DESC LIMIT 3) TO STDOUT (FORMAT csv, HEADER)"), synced(run("COPY t TO STDOUT (FORMAT binary)"), run("SELECT 1")),
		simple("COPY (SELECT 1/(id - 5) FROM t ORDER BY id) TO STDOUT"), simple("COPY (SELECT write_one(5000)) TO STDOUT"),
		simple("COPY (INSERT INTO t VALUES (5001, 'x') RETURNING id) TO STDOUT"),
	}},
	{name: "07 copy messages outside of a COPY", steps: []step{
		ready(1), send(data("1\ta\n"), copyDone, copyFail("what"), q("SELECT 1")), ready(1), synced(run("SELECT 1"), data("x"), copyDone, run("SELECT 2")),
	}},
	{name: "07 a query during copy-in ends the session", steps: []step{
		ready(1), send(q("COPY t FROM STDIN")), until('G'), send(data("1\ta\n"), q("SELECT 1")), ends,
	}},
	{name: "07 Terminate during copy-in", steps: []step{
		ready(1), send(q("COPY t FROM STDIN")), until('G'), send(data("1\ta\n"), terminate), ends,
	}},
	{name: "07 the client leaves during copy-in", steps: []step{
		ready(1), send(q("COPY t FROM STDIN")), until('G'), send(data("1\ta\n")), closeWrite, ends,
	}},
	{name: "07 the client leaves during copy-in of a block", steps: []step{
		ready(1), simple("BEGIN; INSERT INTO t VALUES (9, 'x')"), send(q("COPY t FROM STDIN")), until('G'), send(data("1\ta\n")), closeWrite, ends,
	}},
	{name: "07 empty data", steps: []step{
		ready(1), send(q("COPY t FROM STDIN"), data(""), data(""), copyDone), ready(1), send(q("COPY t FROM STDIN"), copyDone), ready(1), send(q("COPY t FROM STDIN"), data("1\ta\n\\.\n"), copyDone), ready(1),
	}},
	{name: "07 thousands of rows by COPY in and out", large: true, steps: []step{
		ready(1), send(q("COPY t FROM STDIN"), data(lines(5000)), copyDone), ready(1), simple("COPY t TO STDOUT"), simple("SELECT * FROM t"),
	}},
}

// lines are n rows for COPY t.
func lines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d\tthe value %d\n", i, i)
	}
	return b.String()
}
