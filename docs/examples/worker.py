# A worker for the queue of docs/howto-queue.md.

import sys
import threading

import psycopg

URL = "host=127.0.0.1 port=6433 user=app dbname=shop"


def keep(job, grant_id, lost, done):
    """Renews the lease every ten seconds, a third of its time, over a connection of its own."""
    try:
        with psycopg.connect(URL, autocommit=True) as db:
            while not done.wait(10):
                if not db.execute("SELECT keep_job(%s, %s)", [job, grant_id]).fetchone()[0]:
                    break
    except psycopg.Error:
        pass
    if not done.is_set():
        lost.set()


def work(payload, lost):
    """Does the job. One that takes long looks at lost between its parts, and ends if it is set."""
    return payload.upper()


def finish(db, job, fence, result):
    try:
        with db.transaction():
            db.execute("SELECT set_config('wirefence.token', %s, true)", [fence])
            db.execute("INSERT INTO results VALUES (%s, %s)", [job, result])
            db.execute("UPDATE jobs SET done = true WHERE id = %s", [job])
    except psycopg.Error as e:
        if e.sqlstate == "WF001":
            return "was taken by another"
        if e.sqlstate != "WF005":
            raise
    return "is done"


def main(name):
    with psycopg.connect(URL, autocommit=True) as db:
        while True:
            job, payload, fence, grant_id = db.execute("SELECT * FROM take_job(%s)", [name]).fetchone()
            if job is None:
                break
            lost, done = threading.Event(), threading.Event()
            keeper = threading.Thread(target=keep, args=(job, grant_id, lost, done))
            keeper.start()
            try:
                result = work(payload, lost)
            finally:
                done.set()
                keeper.join()
            print("job", job, finish(db, job, fence, result))


main(sys.argv[1])
