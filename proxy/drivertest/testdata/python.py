# What psycopg2 does; main_test.go says what the lines mean.
import io
import os
import select
import threading

import psycopg2
import psycopg2.extensions
import psycopg2.extras

dsn = ""  # all from the environment


def report(kind, name, do):
    try:
        result = do()
    except psycopg2.Error as e:
        position = e.diag.statement_position
        # libpq's large objects report errors by text alone.
        code = e.pgcode or ("WF001" if "stale fencing token" in str(e) else str(e))
        result = f"error {code}" + (f" at {position}" if position else "")
    print(kind, name + ":", result, flush=True)


conn = psycopg2.connect(dsn)
cur = conn.cursor()


def query(sql, *args):
    try:
        cur.execute(sql, args)
        result = cur.fetchall() if cur.description else cur.rowcount
        conn.commit()
        return result
    except psycopg2.Error:
        conn.rollback()
        raise


def transaction():
    with conn:
        with conn.cursor() as c:
            c.execute("SELECT count(*) FROM t")
            c.execute("INSERT INTO t VALUES (10, %s), (11, 'x')", ("Ünicöde 'quoted'",))
            c.execute("SAVEPOINT s")
            c.execute("DELETE FROM t")
            c.execute("ROLLBACK TO SAVEPOINT s")
            c.execute("UPDATE t SET v = v || '!' WHERE id = 10 RETURNING v")
            return c.fetchone()


def rolled_back():
    cur.execute("INSERT INTO t VALUES (12, 'never')")
    conn.rollback()
    return "done"


def named():
    with conn.cursor("a_cursor") as c:
        c.itersize = 3
        c.execute("SELECT generate_series(1, 10)")
        result = sum(row[0] for row in c)
    conn.commit()
    return result


def prepared():
    try:
        cur.execute("PREPARE p AS INSERT INTO t VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET v = excluded.v RETURNING id")
        ids = []
        for i in range(8):
            cur.execute("EXECUTE p (%s, %s)", (20 + i % 2, "p"))
            ids.append(cur.fetchone()[0])
        cur.execute("DEALLOCATE p")
        conn.commit()
        return ids
    except psycopg2.Error:
        conn.rollback()
        raise


def batch():
    try:
        psycopg2.extras.execute_values(cur, "INSERT INTO t VALUES %s", [(i, "b") for i in range(100, 350)])
        psycopg2.extras.execute_batch(cur, "UPDATE t SET v = %s WHERE id = %s", [("c", i) for i in range(100, 120)])
        conn.commit()
        return "done"
    except psycopg2.Error:
        conn.rollback()
        raise


def copy_in():
    try:
        cur.copy_expert("COPY t FROM STDIN", io.StringIO("".join(f"{i}\trow {i}\n" for i in range(1000, 3000))))
        conn.commit()
        return cur.rowcount
    except psycopg2.Error:
        conn.rollback()
        raise


def copy_fails():
    try:
        cur.copy_expert("COPY t FROM STDIN", io.StringIO("no number\tx\n" + "1\ty\n" * 5000))
    finally:
        conn.rollback()


def copy_out():
    into = io.StringIO()
    cur.copy_expert("COPY (SELECT id, v FROM t WHERE id >= 1000 ORDER BY id) TO STDOUT", into)
    conn.commit()
    return len(into.getvalue().splitlines())


def large():
    return query("INSERT INTO t VALUES (5, %s) RETURNING length(v)", "x" * 1_000_000)


def large_object():
    try:
        o = conn.lobject(0, "wb")
        o.write(b"hello")
        o.close()
        data = conn.lobject(o.oid, "rb").read()
        conn.lobject(o.oid, "wb").unlink()
        conn.commit()
        return data
    except psycopg2.Error:
        conn.rollback()
        raise


def cancel():
    timer = threading.Timer(0.3, conn.cancel)
    timer.start()
    try:
        return query("SELECT pg_sleep(60)")
    finally:
        timer.cancel()


def notified():
    query("LISTEN news")
    other = psycopg2.connect(dsn, port=os.environ["DIRECT_PORT"], options="")
    other.autocommit = True
    other.cursor().execute("NOTIFY news, 'hello'")
    select.select([conn], [], [], 30)
    conn.poll()
    return [(n.channel, n.payload) for n in conn.notifies]


def autocommit():
    conn.autocommit = True
    try:
        cur.execute("INSERT INTO t VALUES (40, 'auto'); INSERT INTO t VALUES (41, 'auto')")
        return cur.rowcount
    finally:
        conn.autocommit = False


report("R", "select", lambda: query("SELECT 1 + %s, %s", 1, "ü"))
report("W", "insert", lambda: query("INSERT INTO t VALUES (%s, %s)", 1, "a"))
report("W", "returning", lambda: query("INSERT INTO t VALUES (2, 'b') RETURNING id, v"))
report("W", "function", lambda: query("SELECT write_one(3)"))
report("W", "transaction", transaction)
report("W", "rolled back", rolled_back)
conn.rollback()
report("R", "named cursor", named)
report("W", "prepared", prepared)
report("W", "batch", batch)
report("W", "copy in", copy_in)
report("E", "copy fails", copy_fails)
report("R", "copy out", copy_out)
report("W", "large", large)
report("W", "large object", large_object)
report("W", "autocommit", autocommit)
report("R", "syntax error", lambda: query("SELECT 1 SELEC 2"))
report("E", "position", lambda: query("INSERT INTO t VALUES (9, nöpe)"))
report("E", "duplicate", lambda: query("INSERT INTO t VALUES (1, 'a')"))
report("R", "division", lambda: query("SELECT 1 / 0"))
report("R", "cancel", cancel)
report("R", "alive", lambda: query("SELECT 'alive'"))
report("R", "notify", notified)
report("W", "own notify", lambda: query("NOTIFY news, 'own'"))
conn.set_session(isolation_level="SERIALIZABLE")
report("W", "serializable", lambda: query("INSERT INTO t VALUES (50, 's')"))
conn.set_session(isolation_level="DEFAULT", readonly=True)
report("R", "read only", lambda: query("SELECT count(*) >= 0 FROM t"))
conn.close()
