# What psycopg2's users do.
import io
import select

import psycopg2
import psycopg2.extensions
import psycopg2.extras
import runs


class Program:
    def __init__(self, run, report):
        self.run, self.comment = run, run.comment
        self.conn = psycopg2.connect(dbname=run.database, **run.libpq())
        self.cur = self.conn.cursor()
        self.set()
        self.other = psycopg2.connect(dbname=run.database, **run.unfenced())
        self.other.autocommit = True
        self.scenario(report)
        self.conn.close()
        self.other.close()

    def set(self):
        # Outside of a transaction: a stale session's COMMIT is refused too.
        self.conn.autocommit = True
        self.cur.execute(self.run.set)
        self.conn.autocommit = False

    def whole(self, act):
        """Commits what act does, or rolls it back."""
        try:
            result = act()
            self.conn.commit()
            return result
        except psycopg2.Error:
            self.conn.rollback()
            raise

    def query(self, sql, *args):
        def act():
            self.cur.execute(sql + self.comment, args)
            return self.cur.fetchall() if self.cur.description else self.cur.rowcount

        return self.whole(act)

    def transaction(self):
        with self.conn:
            with self.conn.cursor() as c:
                c.execute("SELECT count(*) FROM t" + self.comment)
                c.execute("INSERT INTO t VALUES (10, %s), (11, 'x')" + self.comment, ("Ünicöde 'quoted'",))
                c.execute("SAVEPOINT s")
                c.execute("DELETE FROM t" + self.comment)
                c.execute("ROLLBACK TO SAVEPOINT s")
                c.execute("UPDATE t SET v = v || '!' WHERE id = 10 RETURNING v" + self.comment)
                return c.fetchone()

    def rolled_back(self):
        try:
            self.cur.execute("INSERT INTO t VALUES (12, 'never')" + self.comment)
            return "done"
        finally:
            self.conn.rollback()

    def named(self):
        with self.conn.cursor("a_cursor") as c:
            c.itersize = 3
            c.execute("SELECT generate_series(1, 10)" + self.comment)
            return sum(row[0] for row in c)

    def prepared(self):
        self.cur.execute(
            "PREPARE p AS INSERT INTO t VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET v = excluded.v RETURNING id"
        )
        ids = []
        try:
            for i in range(8):
                self.cur.execute("EXECUTE p (%s, %s)" + self.comment, (20 + i % 2, "p"))
                ids.append(self.cur.fetchone()[0])
        except psycopg2.Error:
            self.conn.rollback()
            raise
        self.cur.execute("DEALLOCATE p")
        return ids

    def batch(self):
        psycopg2.extras.execute_values(self.cur, "INSERT INTO t VALUES %s" + self.comment, [(i, "b") for i in range(100, 350)])
        psycopg2.extras.execute_batch(
            self.cur, "UPDATE t SET v = %s WHERE id = %s" + self.comment, [("c", i) for i in range(100, 120)]
        )
        return "done"

    def copy_in(self):
        rows = "".join(f"{i}\trow {i}\n" for i in range(1000, 3000))
        self.cur.copy_expert("COPY t FROM STDIN" + self.comment, io.StringIO(rows))
        return self.cur.rowcount

    def copy_from(self):
        self.cur.copy_from(io.StringIO("1\ta\n2\tb\n"), "u")
        return self.cur.rowcount

    def copy_fails(self):
        self.cur.copy_expert("COPY t FROM STDIN" + self.comment, io.StringIO("no number\tx\n" + "1\ty\n" * 5000))

    def copy_out(self):
        into = io.StringIO()
        self.cur.copy_expert("COPY (SELECT generate_series(1, 3000)) TO STDOUT" + self.comment, into)
        return len(into.getvalue().splitlines())

    def large_object(self):
        o = self.conn.lobject(0, "wb")
        o.write(b"hello")
        o.close()
        data = self.conn.lobject(o.oid, "rb").read()
        self.conn.lobject(o.oid, "wb").unlink()
        return data

    def cancel(self):
        def asleep():
            c = self.other.cursor()
            c.execute(runs.SLEEPS)
            return c.fetchone()[0]

        return runs.cancelled(lambda: self.query("SELECT pg_sleep(60)"), asleep, self.conn.cancel)

    def notified(self):
        self.query("LISTEN news")
        self.other.cursor().execute("NOTIFY news, 'hello'")
        select.select([self.conn], [], [], 30)
        self.conn.poll()
        return [(n.channel, n.payload) for n in self.conn.notifies]

    def autocommit(self):
        self.conn.autocommit = True
        try:
            self.cur.execute("INSERT INTO t VALUES (40, 'auto'); INSERT INTO t VALUES (41, 'auto')" + self.comment)
            return self.cur.rowcount
        finally:
            self.conn.autocommit = False

    def alone(self, sql):
        """A statement that refuses a transaction block."""
        self.conn.autocommit = True
        try:
            self.cur.execute(sql + self.comment)
            return self.cur.statusmessage
        finally:
            self.conn.autocommit = False

    def reset(self):
        self.conn.reset()  # ROLLBACK, RESET ALL, SET SESSION AUTHORIZATION DEFAULT
        self.conn.autocommit = True
        self.cur.execute("DISCARD ALL")
        self.conn.autocommit = False
        self.set()
        return self.query("INSERT INTO t VALUES (60, 'behind the reset')")

    def scenario(self, report):
        query = self.query
        report("R", "select", lambda: query("SELECT 1 + %s, %s", 1, "ü"))
        report("W", "insert", lambda: query("INSERT INTO t VALUES (%s, %s)", 1, "a"))
        report("W", "returning", lambda: query("INSERT INTO t VALUES (2, 'b') RETURNING id, v"))
        report("W", "function", lambda: query("SELECT write_one(3)"))
        report("W", "transaction", self.transaction)
        report("W", "rolled back", self.rolled_back)
        report("D", "named cursor", lambda: self.whole(self.named))
        report("W", "prepared", lambda: self.whole(self.prepared))
        report("W", "batch", lambda: self.whole(self.batch))
        report("W", "copy in", lambda: self.whole(self.copy_in))
        report("V", "copy_from", lambda: self.whole(self.copy_from))
        report("E", "copy fails", lambda: self.whole(self.copy_fails))
        report("R", "copy out", lambda: self.whole(self.copy_out))
        report("W", "large", lambda: query("INSERT INTO t VALUES (5, %s) RETURNING length(v)", "x" * 1_000_000))
        report("V", "large object", lambda: self.whole(self.large_object))
        report("W", "autocommit", self.autocommit)
        report("W", "call", lambda: self.alone("CALL commit_one(90000)"))
        report("W", "vacuum", lambda: self.alone("VACUUM t"))
        report("W", "concurrent index", lambda: self.alone("CREATE INDEX CONCURRENTLY ON t(id)"))
        report("E", "syntax error", lambda: query("SELECT 1 SELEC 2"))
        report("E", "position", lambda: query("INSERT INTO t VALUES (9, nöpe)"))
        report("E", "duplicate", lambda: query("INSERT INTO t VALUES (1, 'a')"))
        report("R", "division", lambda: query("SELECT 1 / 0"))
        report("R", "cancel", self.cancel)
        report("R", "notify", self.notified)
        report("W", "own notify", lambda: query("NOTIFY news, 'own'"))
        self.conn.set_session(isolation_level="SERIALIZABLE")
        report("W", "serializable", lambda: query("INSERT INTO t VALUES (50, 's')"))
        self.conn.set_session(isolation_level="DEFAULT", readonly=True)
        report("R", "read only", lambda: query("SELECT count(*) >= 0 FROM t"))
        self.conn.set_session(readonly=False)
        report("W", "reset", self.reset)
        report("R", "alive", lambda: query("SELECT 'alive'"))


runs.serve(Program, lambda e: runs.libpq_error(e) if isinstance(e, psycopg2.Error) else None)
