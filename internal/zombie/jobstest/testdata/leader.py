"""Leads, through PgBouncer, as long as it has the advisory lock; with ADVISORY unset it doesn't ask."""

import os
import time

import psycopg2

db = psycopg2.connect("host=127.0.0.1", port=os.environ["POOLER"])
db.autocommit = True
sql = db.cursor()
while True:
    if "ADVISORY" in os.environ:
        sql.execute("SELECT pg_try_advisory_lock(7)")
        if not sql.fetchone()[0]:
            time.sleep(0.1)
            continue
    sql.execute("INSERT INTO runs DEFAULT VALUES")
    time.sleep(0.5)
    sql.execute("BEGIN")
    if "WIREFENCE_FENCE" in os.environ:  # PgBouncer drops PGOPTIONS
        sql.execute("SELECT set_config('wirefence.token', %s, true)", (os.environ["WIREFENCE_FENCE"],))
    sql.execute("UPDATE totals SET orders = orders + 1, by = %s", ("leader %d" % os.getpid(),))
    sql.execute("COMMIT")
