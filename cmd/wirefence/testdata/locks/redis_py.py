"""Takes redis-py's lock, and gives it back as it is told. With "celery" a task of Celery does so."""

import sys
import uuid

import redis

url, key, seconds = sys.argv[2:]
lock = redis.Redis.from_url(url).lock(key, timeout=int(seconds))


def do(told):
    try:
        if told == "acquire":
            return lock.acquire(blocking=False)
        if told == "extend":
            return lock.extend(int(seconds), replace_ttl=True)
        lock.release()
        return True
    except redis.exceptions.LockError as error:
        print(told, error, file=sys.stderr, flush=True)
        return False


def follow(does):
    for line in sys.stdin:
        print("yes" if does(line.strip()) else "no", flush=True)


if sys.argv[1] == "celery":
    import celery
    from celery.contrib.testing.worker import start_worker

    app = celery.Celery(broker=url, backend=url)
    app.conf.task_default_queue = "locks-" + uuid.uuid4().hex
    task = app.task(do, name="do")
    with start_worker(app, pool="solo", perform_ping_check=False):
        follow(lambda told: task.delay(told).get(timeout=60, disable_sync_subtasks=False))
else:
    follow(do)
