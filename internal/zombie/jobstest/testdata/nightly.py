"""A task that Celery's beat starts every second: `celery -A nightly worker --beat`."""

import os
import time

import psycopg2
from celery import Celery

app = Celery("nightly", broker=os.environ["BROKER"])
app.conf.beat_schedule = {"nightly": {"task": "nightly.nightly", "schedule": 1.0}}


@app.task(name="nightly.nightly")
def nightly():
    db = psycopg2.connect("")
    with db, db.cursor() as sql:
        sql.execute("INSERT INTO runs DEFAULT VALUES")
        sql.execute("SELECT count(*) FROM orders")
        orders = sql.fetchone()[0]
    time.sleep(0.5)
    with db, db.cursor() as sql:
        sql.execute("UPDATE totals SET orders = %s, by = %s", (orders, "celery %d" % os.getpid()))
    db.close()
