"""Jobs that are right by themselves, under a lock that is a row. The argument is the way."""

import os
import sys

import psycopg2

db = psycopg2.connect("")
db.autocommit = True
sql = db.cursor()
me = str(os.getpid())
sql.execute("UPDATE locks SET owner = %s, until = now() + interval '1 min' WHERE until <= now()", (me,))
if sql.rowcount == 0:
    sys.exit(75)
if sys.argv[1] == "one transaction":
    sql.execute("BEGIN")
    sql.execute("SELECT orders FROM totals FOR UPDATE")
    sql.execute("UPDATE totals SET orders = %s", (sql.fetchone()[0] + 1,))
    sql.execute("COMMIT")
elif sys.argv[1] == "idempotent":
    sql.execute("SELECT count(*) FROM orders")
    sql.execute("UPDATE totals SET orders = %s, by = %s", (sql.fetchone()[0], me))
else:
    sql.execute("SELECT orders FROM totals")
    n = sql.fetchone()[0]
    if sys.argv[1] == "checked":
        sql.execute("WITH mine AS (SELECT FROM locks WHERE owner = %s AND until > now() FOR UPDATE)"
                    " UPDATE totals SET orders = %s WHERE EXISTS (SELECT FROM mine)", (me, n + 1))
    elif sys.argv[1] == "versioned":
        sql.execute("UPDATE totals SET orders = %s WHERE orders = %s", (n + 1, n))
sql.execute("UPDATE locks SET until = now() WHERE owner = %s", (me,))
db.close()
