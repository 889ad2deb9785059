# What psycopg 3's users do.
import psycopg
import runs
from psycopg import IsolationLevel, Rollback


class Program:
    def __init__(self, run, report):
        self.run, self.comment = run, run.comment
        self.conn = psycopg.connect(dbname=run.database, autocommit=True, **run.libpq())
        self.conn.execute(run.set)
        with psycopg.connect(dbname=run.database, autocommit=True, **run.unfenced()) as self.other:
            self.scenario(report)
        self.conn.close()

    def query(self, sql, *args, **how):
        c = self.conn.execute(sql + self.comment, args or None, **how)
        return c.fetchall() if c.description else c.rowcount

    def transaction(self):
        with self.conn.transaction():
            self.query("INSERT INTO t VALUES (10, %s)", "tx")
            with self.conn.transaction():  # a savepoint
                self.query("DELETE FROM t")
                raise Rollback
        with self.conn.transaction():
            with self.conn.transaction("named"):
                return self.query("UPDATE t SET v = %s WHERE id = 10 RETURNING v", "Ü")

    def savepoint_error(self):
        with self.conn.transaction():
            self.query("INSERT INTO t VALUES (13, 'kept')")
            try:
                with self.conn.transaction():
                    self.query("SELECT 1 / 0")
            except psycopg.errors.DivisionByZero:
                pass
            return self.query("SELECT v FROM t WHERE id = 13")

    def level(self, isolation, sql):
        try:
            self.conn.isolation_level = isolation
            with self.conn.transaction():
                return self.query(sql)
        finally:
            self.conn.isolation_level = None

    def read_only(self):
        try:
            self.conn.read_only = True
            with self.conn.transaction():
                return self.query("SELECT count(*) >= 0 FROM t")
        finally:
            self.conn.read_only = None

    def prepared(self):
        for i in range(8):  # prepared by the driver from the sixth on, or at once
            self.query("INSERT INTO t VALUES (%s, 'p')", 20 + i)
            self.query("INSERT INTO t VALUES (%s, 'q')", 30 + i, prepare=True)
        return "done"

    def many(self):
        with self.conn.cursor() as c:  # a pipeline of the driver's own
            c.executemany("INSERT INTO t VALUES (%s, %s) RETURNING id" + self.comment, [(100 + i, "m") for i in range(200)], returning=True)
            return c.rowcount

    def pipeline(self):
        with self.conn.pipeline() as p:
            first = self.conn.execute("SELECT 1" + self.comment)
            self.conn.execute("INSERT INTO t VALUES (400, 'pipe')" + self.comment)
            p.sync()
            self.conn.execute("INSERT INTO t VALUES (401, 'pipe')" + self.comment)
            last = self.conn.execute("SELECT count(*) FROM t WHERE v = 'pipe'" + self.comment)
            return first.fetchone(), last.fetchone()

    def pipeline_error(self):
        with self.conn.pipeline():
            self.conn.execute("INSERT INTO t VALUES (410, 'pipe')" + self.comment)
            self.conn.execute("SELECT 1 / 0" + self.comment)
            self.conn.execute("INSERT INTO t VALUES (411, 'pipe')" + self.comment)

    def pipeline_transaction(self):
        with self.conn.pipeline(), self.conn.transaction():
            self.conn.execute("INSERT INTO t VALUES (420, 'pipe')" + self.comment)
            try:
                with self.conn.transaction():
                    self.conn.execute("SELECT 1 / 0" + self.comment)
            except psycopg.errors.DivisionByZero:
                pass
            return self.conn.execute("SELECT count(*) FROM t WHERE v = 'pipe'" + self.comment).fetchone()

    def cursor(self):
        with self.conn.transaction(), self.conn.cursor("a_cursor", scrollable=True) as c:
            c.itersize = 3
            c.execute("SELECT generate_series(1, 10)" + self.comment)
            n = sum(row[0] for row in c)
            c.scroll(2, mode="absolute")
            return n, c.fetchone()

    def stream(self):
        return sum(row[0] for row in self.conn.cursor().stream("SELECT generate_series(1, %s::int)" + self.comment, (500,)))

    def copy_in(self, form=""):
        with self.conn.cursor() as c:
            with c.copy("COPY t (id, v) FROM STDIN" + form + self.comment) as copy:
                if form:
                    copy.set_types(["int4", "text"])
                for i in range(1000, 2000):
                    copy.write_row((i + (1000 if form else 0), "row"))
            return c.rowcount

    def copy_fails(self):
        with self.conn.cursor().copy("COPY t FROM STDIN" + self.comment) as copy:
            copy.write("no number\tx\n" + "1\ty\n" * 50000)

    def copy_given_up(self):
        try:
            with self.conn.cursor().copy("COPY t FROM STDIN" + self.comment) as copy:
                copy.write_row((1, "x"))
                raise RuntimeError("given up")
        except RuntimeError as e:
            return e

    def copy_out(self):
        with self.conn.cursor().copy("COPY (SELECT generate_series(1, 3000)) TO STDOUT" + self.comment) as copy:
            return sum(1 for _ in copy.rows())

    def cancel(self):
        def asleep():
            return self.other.execute(runs.SLEEPS).fetchone()[0]

        return runs.cancelled(lambda: self.query("SELECT pg_sleep(60)"), asleep, self.conn.cancel)

    def notified(self):
        self.conn.execute("LISTEN news")
        self.other.execute("NOTIFY news, 'hello'")
        for heard in self.conn.notifies():
            return heard.channel, heard.payload

    def reset(self):
        self.conn.execute("DISCARD ALL")
        # The driver's own statements are gone, and it notices only its own SQL.
        self.conn._prepared.clear()
        self.conn.execute(self.run.set)
        return self.query("INSERT INTO t VALUES (%s, 'behind the reset')", 60)

    def scenario(self, report):
        query = self.query
        report("R", "select", lambda: query("SELECT 1 + %s, %s::text", 1, "ü"))
        report("R", "binary", lambda: query("SELECT %s::int, now() > '2020-01-01'", 7, binary=True))
        report("W", "insert", lambda: query("INSERT INTO t VALUES (%s, %s)", 1, "a"))
        report("W", "returning", lambda: query("INSERT INTO t VALUES (2, 'b') RETURNING id, v"))
        report("W", "function", lambda: query("SELECT write_one(%s)", 3))
        report("W", "several", lambda: query("INSERT INTO t VALUES (4, 'c'); INSERT INTO t VALUES (5, 'd')"))
        report("W", "transaction", self.transaction)
        report("W", "failing savepoint", self.savepoint_error)
        report("W", "serializable", lambda: self.level(IsolationLevel.SERIALIZABLE, "INSERT INTO t VALUES (50, 's')"))
        report("W", "repeatable read", lambda: self.level(IsolationLevel.REPEATABLE_READ, "INSERT INTO t VALUES (51, 's')"))
        report("R", "read only", self.read_only)
        report("W", "prepared", self.prepared)
        report("W", "executemany", self.many)
        report("W", "pipeline", self.pipeline)
        report("E", "failing pipeline", self.pipeline_error)
        report("W", "transaction in a pipeline", self.pipeline_transaction)
        report("D", "cursor", self.cursor)
        report("R", "stream", self.stream)
        report("W", "copy in", self.copy_in)
        report("W", "binary copy in", lambda: self.copy_in(" (FORMAT binary)"))
        report("E", "copy fails", self.copy_fails)
        report("R", "copy out", self.copy_out)
        report("W", "large", lambda: query("INSERT INTO t VALUES (6, %s) RETURNING length(v)", "x" * 1_000_000))
        report("W", "call", lambda: query("CALL commit_one(%s)", 90000))
        report("W", "vacuum", lambda: query("VACUUM t"))
        report("W", "concurrent index", lambda: query("CREATE INDEX CONCURRENTLY ON t(id)"))
        report("E", "syntax error", lambda: query("SELECT 1 SELEC 2"))
        report("E", "position", lambda: query("INSERT INTO t VALUES (9, nöpe)"))
        report("E", "position, extended", lambda: query("INSERT INTO t VALUES (%s, nöpe)", 9))
        report("E", "duplicate", lambda: query("INSERT INTO t VALUES (%s, 'a')", 1))
        report("R", "division", lambda: query("SELECT 1 / %s::int", 0))
        report("R", "cancel", self.cancel)
        report("R", "notify", self.notified)
        report("W", "own notify", lambda: query("SELECT pg_notify('news', 'own')"))
        report("W", "reset", self.reset)
        report("R", "alive", lambda: query("SELECT 'alive'"))


runs.serve(Program, lambda e: runs.libpq_error(e) if isinstance(e, psycopg.Error) else None)
