"""Writes each line of its input to the table orders, while it has the lease "orders".

    API=http://127.0.0.1:9433 DATABASE_URL=postgres://app@127.0.0.1:6433/app python worker.py

It exits with 75 if the lease could not be acquired, and with 76 if it was lost.
"""

import os
import sys

import psycopg

import wirefence
from wirefence.psycopg import cursor

client = wirefence.Client(os.environ["API"], token=os.environ.get("API_TOKEN"), ttl=float(os.environ.get("TTL", 15)))
try:
    with client.lease("orders", wait=60) as lease, psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as session:
        print("holding", lease.fence, flush=True)
        orders = cursor(session, lease)
        while True:
            lease.check()  # the process may be stopped right behind it: then the fence counts
            print("ready", flush=True)
            item = sys.stdin.readline().strip()
            if not item:
                break
            orders.execute("INSERT INTO orders (item) VALUES (%s)", [item])
            print("wrote", item, flush=True)
except wirefence.LeaseHeld as error:
    print("not acquired:", error, file=sys.stderr)
    sys.exit(75)
except wirefence.StaleToken as error:
    print("stopped, since another has taken over:", error, error.detail, file=sys.stderr)
    sys.exit(76)
except wirefence.LeaseLost as error:
    print("stopped:", error, file=sys.stderr)
    sys.exit(76)
