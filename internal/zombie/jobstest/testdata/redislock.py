"""Runs a command under a lock in Redis of two seconds, which it renews."""

import os
import subprocess
import sys
import threading
import uuid

import redis

PX = 2000
key, mine, over = os.environ["LOCK"], uuid.uuid4().hex, threading.Event()
store = redis.Redis.from_url(os.environ["REDIS"])
IF_MINE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end"


def renew():
    while not over.wait(PX / 4000):
        store.eval(IF_MINE, 1, key, mine, PX)


if not store.set(key, mine, nx=True, px=PX):
    sys.exit(75)
threading.Thread(target=renew).start()
status = subprocess.call(sys.argv[1:])
over.set()
if store.get(key) == mine.encode():
    store.delete(key)
sys.exit(status)
