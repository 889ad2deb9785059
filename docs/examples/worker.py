# A worker for the queue of docs/howto/queue.md.

import sys
import threading
from typing import NamedTuple

import psycopg
import wirefence
from wirefence.psycopg import transaction

URL = "host=127.0.0.1 port=6433 user=app dbname=shop"


class Job(NamedTuple):
    id: int
    payload: str
    claim: int


def take(db, ttl):
    row = db.execute("SELECT * FROM take_job(%s)", [ttl]).fetchone()
    return Job(*row) if row else None


def put_back(db, job, wait="0"):
    """Gives a job back, for a retry now or later. It says whether the worker still had it."""
    return db.execute(
        "UPDATE jobs SET claim = NULL, taken_until = now() + %s::interval WHERE id = %s AND claim = %s AND NOT done",
        [wait, job.id, job.claim],
    ).rowcount == 1


def finish(db, job, result):
    with transaction(db, wirefence.Claims("job", [(job.id, job.claim)])):
        db.execute("INSERT INTO results VALUES (%s, %s)", [job.id, result])
        db.execute("UPDATE jobs SET done = true WHERE id = %s", [job.id])


def keep(job, lost, done):
    """Keeps the job every ten seconds, a third of its time, over a connection of its own."""
    try:
        with psycopg.connect(URL, autocommit=True) as db:
            while not done.wait(10):
                if not db.execute(
                    "UPDATE jobs SET taken_until = now() + '30 seconds' WHERE id = %s AND claim = %s AND NOT done",
                    [job.id, job.claim],
                ).rowcount:
                    break
    except psycopg.Error:
        pass
    if not done.is_set():
        lost.set()


def work(payload, lost):
    """Does the job. One that takes long looks at lost between its parts, and ends if it is set."""
    return payload.upper()


def main(name):
    with psycopg.connect(URL, autocommit=True) as db:
        while job := take(db, "30 seconds"):
            lost, done = threading.Event(), threading.Event()
            keeper = threading.Thread(target=keep, args=(job, lost, done))
            keeper.start()
            try:
                result = work(job.payload, lost)
            finally:
                done.set()
                keeper.join()
            try:
                finish(db, job, result)
                print("job", job.id, "is done")
            except wirefence.StaleToken:
                print("job", job.id, "was taken by another")


if __name__ == "__main__":
    main(sys.argv[1])
