"""Counts under an advisory lock, whose session is another than the work's. The argument is the way."""

import sys

import psycopg2

lock, db = psycopg2.connect(""), psycopg2.connect("")
lock.autocommit = True
sql = lock.cursor()
sql.execute("SELECT pg_try_advisory_lock(7)")
if not sql.fetchone()[0]:
    sys.exit(75)
work = db.cursor()
if sys.argv[1] == "one transaction":
    work.execute("SELECT orders FROM totals FOR UPDATE")
    work.execute("UPDATE totals SET orders = %s", (work.fetchone()[0] + 1,))
else:
    work.execute("SELECT orders FROM totals")
    n = work.fetchone()[0]
    db.commit()
    work.execute("UPDATE totals SET orders = %s", (n + 1,))
db.commit()
db.close()
lock.close()
