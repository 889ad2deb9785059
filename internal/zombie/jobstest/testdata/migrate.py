"""Runs migrations that are not in the history, as Flyway does one that can't run in a transaction."""

import time

import psycopg2

MIGRATIONS = {1: "UPDATE totals SET orders = orders * 100", 2: "UPDATE totals SET by = upper(by)"}

db = psycopg2.connect("")
db.autocommit = True
sql = db.cursor()
for version, migration in MIGRATIONS.items():
    sql.execute("SELECT FROM schema_history WHERE version = %s", (version,))
    if sql.fetchone() is not None:
        continue
    sql.execute("INSERT INTO runs DEFAULT VALUES")
    time.sleep(0.5)
    sql.execute(migration)
    sql.execute("INSERT INTO schema_history VALUES (%s)", (version,))
