"""Works on the page's own queue, with worker.py, which the page has its reader copy."""

import json
import os
import random
import sys
import time

import psycopg

import worker

NAME, ACTS = os.environ["NAME"], os.environ["ACTS"].split()
WAIT = int(os.environ["WAIT"]) / 1000
HURRY = int(os.environ["HURRY"])
chance = random.Random(int(os.environ["SEED"]))


def act():
    if not ACTS:
        return sys.stdin.readline().strip()
    time.sleep(chance.random() / 2 / HURRY + (2 * WAIT if chance.random() < 0.05 / HURRY else 0))  # for which the queue doesn't wait
    return chance.choice(ACTS)


def tell(event, job, **more):
    print(json.dumps({"event": event, "job": str(job.id), "claim": job.claim, "at": time.time_ns() // 1000, **more}), flush=True)


def do(db, job):
    tell("took", job)
    told = act()
    if told == "retry":
        worker.put_back(db, job)
    elif told == "snooze":
        worker.put_back(db, job, "10 milliseconds")
    elif told == "cancel":
        db.execute("UPDATE jobs SET done = true, payload = 'cancelled' WHERE id = %s AND claim = %s", [job.id, job.claim])
    else:
        try:
            worker.finish(db, job, f"{NAME}/{job.claim}")
            tell("wrote", job)
        except worker.wirefence.Refused as refused:
            tell("refused", job, state=refused.sqlstate)
        except psycopg.Error as error:
            tell("failed", job, state=error.sqlstate or "", error=str(error))
            raise


while True:
    try:
        with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as db:
            while True:
                if job := worker.take(db, f"{WAIT} seconds"):
                    do(db, job)
                else:
                    time.sleep(0.1 / HURRY)
    except psycopg.Error as error:
        print(error, file=sys.stderr, flush=True)  # the proxy restarts
        time.sleep(0.1)
