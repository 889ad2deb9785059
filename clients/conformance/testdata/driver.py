"""Does what the cases say with the client for Python. Each line of its input is a step, and
each line of its output what came of it."""

import json
import os
import sys
import time
from unittest import mock

import psycopg

import wirefence
from wirefence import clock

NAME, API = os.environ["NAME"], os.environ["API"]
suspended = 0.0
lease = None
began = 0.0


def now():
    return clock.now() + suspended


class Fails(Exception):
    pass


def client_of(step):
    if "without psycopg 3" in sys.argv:
        with mock.patch.dict(sys.modules, {"psycopg": None}):
            return make_client(step)
    return make_client(step)


def make_client(step):
    return wirefence.Client(
        API,
        token=step.get("token", os.environ["API_TOKEN"]) if API.startswith("http") else None,
        holder=NAME,
        ttl=step.get("ttl"),
        max_hold=step.get("max_hold", 86400),
        timeout=10,
        clock=now,
    )


def acquire(step):
    global lease, began
    client = client_of(step)
    began = time.monotonic()
    lease = client.acquire(step["resource"], wait=step.get("wait", 0), idempotency_key=step.get("key"))
    return {
        "granted": True,
        "token": str(lease.token),
        "fence": lease.fence,
        "comment": lease.comment(),
        "grant_id": lease.grant_id,
        "remaining": lease.remaining(),
    }


def check(step):
    try:
        lease.check()
        return {"held": True}
    except wirefence.LeaseLost as lost:
        return {"held": False, "cause": lost.cause}


def await_end(step):
    if not lease.ended.wait(step["within"]):
        return {"error": "not ended"}
    return {"cause": lease.error.cause, "at": time.monotonic() - began}


def release(step):
    lease.release()
    return {"released": True}


def keep(step):
    lease.keep(step["keep_for"])
    return {"given_up": True}


def run(step):
    """Works in a block with a lease, and fails if the step says so."""
    try:
        with client_of(step).lease(step["resource"], keep_for=step["keep_for"]):
            time.sleep(step.get("works", 0))
            if step.get("fails"):
                raise Fails
    except Fails:
        pass
    return {"ran": True}


def suspend(step):
    global suspended
    suspended += step["seconds"]
    return {}


def write(step):
    via, fence = step.get("via", "comment"), claims_of(step) if "rows" in step else lease
    insert = "INSERT INTO orders (item) VALUES ('book')"
    options = {"options": fence.options()} if via == "options" else {}
    with psycopg.connect(os.environ["DATABASE_URL"], **options) as connection, wirefence.refusals():
        if via == "set_local":
            connection.execute(fence.set_local())
        connection.execute(insert + (fence.comment() if via == "comment" else ""))
    return {"written": True}


def claims_of(step):
    rows = step.get("rows") or [[i + 1, "1"] for i in range(step.get("count", 0))]
    return wirefence.Claims(step["class"], [(tuple(key) if isinstance(key, list) else key, claim) for key, claim in rows])


def claims(step):
    made = claims_of(step)
    return {"fence": made.fence, "comment": made.comment(), "set_local": made.set_local()}


def sql(step):
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection, wirefence.refusals():
        connection.execute(step["sql"])
    return {}


def failure(error):
    if isinstance(error, wirefence.Refused):
        return {
            "error": type(error).__name__,
            "sqlstate": error.sqlstate,
            "condition": error.condition,
            "message": str(error),
            "detail": error.detail,
            "hint": error.hint,
        }
    if isinstance(error, psycopg.Error):
        return {"error": "other", "sqlstate": error.sqlstate}
    if isinstance(error, wirefence.LeaseHeld):
        return {"error": "held", "held_by": error.held_by}
    if isinstance(error, wirefence.LeaseLost):
        return {"error": "lost", "cause": error.cause}
    if isinstance(error, wirefence.Unavailable):
        return {"error": "unavailable"}
    if isinstance(error, ValueError) or getattr(error, "type", "") == "invalid-request":
        return {"error": "invalid"}
    if isinstance(error, wirefence.ApiError):
        return {"error": "refused", "type": error.type}
    raise error


steps = {
    "acquire": acquire,
    "check": check,
    "await_end": await_end,
    "release": release,
    "keep": keep,
    "run": run,
    "remaining": lambda step: {"remaining": lease.remaining()},
    "suspend": suspend,
    "write": write,
    "claims": claims,
    "sql": sql,
}

for line in sys.stdin:
    step = json.loads(line)
    started = time.monotonic()
    try:
        outcome = steps[step["do"]](step)
    except Exception as error:
        outcome = failure(error)
        print(f"{NAME}: {step['do']}: {error!r}", file=sys.stderr, flush=True)
    outcome["took"] = time.monotonic() - started
    print(json.dumps(outcome), flush=True)
