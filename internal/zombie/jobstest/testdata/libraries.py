"""Jobs around locks, as the libraries' READMEs show them. The argument is the library."""

import operator
import os
import sys
import uuid

import psycopg2
import redis

REDIS = os.environ["REDIS"]


def count():
    """Reads, and writes what it has computed."""
    db = psycopg2.connect("")
    db.autocommit = True
    sql = db.cursor()
    sql.execute("SELECT orders FROM totals")
    sql.execute("UPDATE totals SET orders = %s", (sql.fetchone()[0] + 1,))
    db.close()


def redis_py(work=count):
    lock = redis.Redis.from_url(REDIS).lock("nightly", timeout=60)
    if not lock.acquire(blocking=False):
        sys.exit(75)
    work()
    lock.release()


def celery_once():
    from celery import Celery
    from celery.contrib.testing.worker import start_worker
    from celery_once import QueueOnce

    app = Celery("jobs", broker=REDIS, backend=REDIS)
    app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": {"url": REDIS, "default_timeout": 60}}
    app.conf.task_default_queue = "of-" + uuid.uuid4().hex  # of its own: each run has its worker
    nightly = app.task(count, base=QueueOnce, name="nightly")
    with start_worker(app, pool="solo", perform_ping_check=False):
        nightly.delay().get(timeout=60, disable_sync_subtasks=False)


def apscheduler():
    from apscheduler.schedulers.blocking import BlockingScheduler

    scheduler = BlockingScheduler()

    def nightly():
        count()
        scheduler.shutdown(wait=False)

    scheduler.add_job(nightly, max_instances=1)  # now
    scheduler.start()


def langgraph():
    from typing import Annotated, TypedDict

    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.graph import END, START, StateGraph

    class State(TypedDict):
        orders: Annotated[list, operator.add]

    graph = StateGraph(State)
    graph.add_node("count", lambda state: {"orders": [len(state["orders"])]})
    graph.add_edge(START, "count")
    graph.add_edge("count", END)

    def turn():
        with PostgresSaver.from_conn_string("") as saver:
            graph.compile(checkpointer=saver).invoke({"orders": [0]}, {"configurable": {"thread_id": "1"}})

    if sys.argv[2:] == ["setup"]:
        with PostgresSaver.from_conn_string("") as saver:
            saver.setup()
    else:
        redis_py(turn)


globals()[sys.argv[1]]()
