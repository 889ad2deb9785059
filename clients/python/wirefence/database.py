"""Requests for leases by SQL, answered as by the HTTP API."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import importlib
import math
import os
import socket
import threading
import time
from concurrent.futures import Future
from typing import Any, Callable, Dict, List, Optional, Sequence
from urllib.parse import quote

from .api import Abort, shut
from .errors import ApiError, LeaseHeld, Unavailable

TTL = 15.0  # seconds, where a client names none

GRACE = 5.0  # seconds that a request nobody waits for has to end

# Where a resource's preempt_after ends nobody, lock_timeout bounds the wait for older transactions.
ACQUIRE = """SELECT a.token::text, a.held_by, extract(epoch FROM a.expires_at - clock_timestamp())::float8
FROM set_config('lock_timeout', %s, true) AS bound,
     wirefence.acquire(%s, CASE WHEN bound <> '' THEN %s END, make_interval(secs => %s), %s) AS a"""

# Returns why the lease is lost, null if it isn't.
RENEW = """SELECT CASE WHEN l.former OR coalesce(l.last_token, 0) < t.token THEN 'failover'
    WHEN l.last_token > t.token AND l.holder IS NULL THEN 'revoked'
    WHEN l.last_token > t.token OR NOT wirefence.renew(t.resource, %s, make_interval(secs => %s)) THEN 'lost' END
FROM (SELECT %s::text, %s::bigint) AS t (resource, token)
LEFT JOIN (SELECT *, NOT pg_is_in_recovery() AND pinned_to <> wirefence.identity() AS former FROM wirefence.resource_locks) AS l
     ON l.resource_id = t.resource"""

RELEASE = "SELECT wirefence.release(%s, %s)"

# Of problems, by SQLSTATE.
TYPES = {"22023": "invalid-request", "WF008": "no-such-resource", "3F000": "not-configured", "42883": "not-configured"}


def sessions(url: str) -> Callable[[], Session]:
    """Return what makes sessions with a database, one for each lease."""
    for name in ("psycopg", "psycopg2"):
        with contextlib.suppress(ImportError):
            driver = importlib.import_module(name)
            break
    else:
        raise ImportError("leases by SQL need psycopg 3 or psycopg2: pip install 'psycopg[binary]'")
    read = driver.conninfo.conninfo_to_dict if name == "psycopg" else driver.extensions.parse_dsn
    try:
        parameters = {"client_encoding": "utf8", "fallback_application_name": "wirefence lease", **read(url)}
    except driver.Error:  # its text can have the password
        raise ValueError("libpq can't read the url of the database") from None
    if name == "psycopg":
        parameters["prepare_threshold"] = None  # poolers may know no prepared statements
    return functools.partial(Session, driver, parameters)


class Question(Future):  # type: ignore[type-arg]
    """What a thread asks the database. A caller that doesn't wait any longer cancels it."""

    sock: Optional[socket.socket] = None

    def cut(self) -> None:
        if self.sock:
            shut(self.sock)


class Session:
    """The requests of one lease, and a connection of its own between them. It is safe for
    concurrent use: a request that finds the connection in use opens another.

    Requests run in threads, since a driver may not look up from a server that is silent, at
    signals neither.
    """

    by_sql = True

    def __init__(self, driver: Any, parameters: Dict[str, Any]) -> None:
        self._driver, self._parameters, self._pid = driver, parameters, os.getpid()
        self._idle: List[Any] = []
        self._closed = False
        self._token = 0

    def call(
        self, resource: str, operation: str, body: Dict[str, Any], timeout: float, abort: Optional[Abort] = None
    ) -> Dict[str, Any]:
        """Do as Api.call does."""
        abort = abort or Abort()
        if operation == "acquire":
            return self._acquire(resource, body, timeout - body["wait_seconds"], abort)
        if operation == "release":
            return {"was_held": self._ask(RELEASE, (resource, body["grant_id"]), timeout, abort)[0]}
        ttl = body["ttl_seconds"]
        if cause := self._ask(RENEW, (body["grant_id"], ttl, resource, self._token), timeout, abort)[0]:
            raise problem("lease-lost", "the database no longer has the lease", cause=cause)
        return term(ttl)

    def _acquire(self, resource: str, body: Dict[str, Any], patience: float, abort: Abort) -> Dict[str, Any]:
        """Ask until the lease is won, or the time to wait is over."""
        began = time.monotonic()
        grant, ttl = f"{body['holder']}/{body['idempotency_key']}", body.get("ttl_seconds", TTL)
        # Others may know this name of the grant, as its id is a secret.
        holder = f"{body['holder']}/{base64.b32encode(hashlib.sha256(grant.encode()).digest())[:26].decode()}"
        bound = str(max(1, math.ceil(patience * 1000)))
        while True:
            after = time.monotonic() - began
            token, held_by, held_for = self._ask(ACQUIRE, (bound, resource, holder, ttl, grant), patience, abort)
            if token is not None:
                self._token = int(token)
                fence = f"{quote(resource, safe='/:').replace('~', '%7E')}={token}"
                return {"resource": resource, "grant_id": grant, "token_text": token, "fence": fence, **term(ttl, after)}
            left = began + body["wait_seconds"] - time.monotonic()
            if left <= 0 or abort.wait(min(left, 1.0, max(0.05, held_for or 0.05))):
                told = f'"{resource}" is held by {held_by or "another, which is being granted it"}'
                held = {"held_by": held_by or "", "held_for_seconds": held_for}
                raise problem("lease-held", told, LeaseHeld, **held)

    def close(self) -> None:
        """Close the connection. Later requests open their own."""
        self._closed = True
        while connection := self._take():
            connection.close()

    def _ask(self, sql: str, values: Sequence[Any], patience: float, abort: Abort) -> Any:
        """Return the row that a statement returns, within so many seconds."""
        question = Question()
        work = functools.partial(self._answer, question, sql, values, patience)
        try:
            threading.Thread(target=work, name="wirefence sql", daemon=True).start()
        except RuntimeError:  # no further thread can start
            work()
        abort.cut = question.cancel
        if abort.is_set():
            question.cancel()
        try:
            with contextlib.suppress(Exception):  # which is raised below
                question.result(patience)
        finally:  # also at a KeyboardInterrupt
            if given_up := question.cancel():
                late = threading.Timer(GRACE, question.cut)
                late.daemon = True
                late.start()
        if given_up:
            raise Unavailable("no answer from the database: " + ("aborted" if abort.is_set() else f"none within {patience:.3f} s"))
        try:
            return question.result()
        except self._driver.Error as error:
            raise translated(self._driver, error) from error

    def _answer(self, question: Question, sql: str, values: Sequence[Any], patience: float) -> None:
        row, error = None, None
        try:
            row = self._query(question, sql, values, patience)
        except BaseException as e:
            error = e
        if question.set_running_or_notify_cancel():
            question.set_exception(error) if error else question.set_result(row)
        elif self._closed and sql is ACQUIRE and row and row[0]:  # nobody knows of this grant
            with contextlib.suppress(Exception):
                self._query(Question(), RELEASE, (values[1], values[4]), patience)

    def _query(self, question: Question, sql: str, values: Sequence[Any], patience: float) -> Any:
        while True:
            used = self._take()
            connection = used or self._connect(patience)
            try:
                with socket.socket(fileno=os.dup(connection.fileno())) as question.sock, connection.cursor() as cursor:
                    if question.cancelled():
                        raise TimeoutError
                    cursor.execute(sql, values)
                    row = cursor.fetchone()
                    if self._driver.__name__ == "psycopg2":
                        cursor.execute("SELECT")  # pg_stat_activity would go on showing the grant's id
            except BaseException:
                broken = connection.closed
                connection.close()
                if not used or not broken or question.cancelled():
                    raise
            else:
                self._idle.append(connection)
                if self._closed:
                    self.close()
                return row

    def _take(self) -> Any:
        """Return the idle connection, None without one. A forked process has none: it is its parent's."""
        with contextlib.suppress(IndexError):
            return self._idle.pop() if self._pid == os.getpid() else None
        return None

    def _connect(self, patience: float) -> Any:
        connection = self._driver.connect(**{"connect_timeout": max(2, math.ceil(patience)), **self._parameters})
        connection.autocommit = True  # a grant counts from its commit on
        return connection


def term(ttl: float, after: float = 0.0) -> Dict[str, Any]:
    """Return the term of a lease that was asked for so many seconds behind the begin of the call."""
    return {"ttl_seconds": ttl, "expires_in_seconds": after + ttl, "renew_after_seconds": after + ttl / 3}


def problem(name: str, detail: str, kind: Callable[..., ApiError] = ApiError, **fields: Any) -> ApiError:
    return kind(detail, problem={"type": "urn:wirefence:problem:" + name, "detail": detail, **fields})


def translated(driver: Any, error: Any) -> ApiError:
    """Return a driver's error as the API's."""
    if isinstance(error, (driver.OperationalError, driver.InterfaceError, driver.InternalError)):
        return Unavailable(f"no answer from the database: {error}".strip())
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""
    told = [getattr(error.diag, "message_" + part) for part in ("primary", "detail", "hint")]
    return problem(TYPES.get(state, "refused-by-the-database"), ". ".join(filter(None, told)) or str(error), sqlstate=state)
