"""Winning leases, and using them in `with` and `async with`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import ssl
import threading
import uuid
from concurrent.futures import Future
from typing import Any, Callable, Dict, Optional, Tuple, Union

from . import clock as clocks
from .api import Abort, Api, Token
from .database import Session, sessions
from .errors import LeaseHeld, LeaseLost, Unavailable
from .lease import Keeping, Lease, OnLost, check_keep_for

MAX_WAIT = 60.0  # seconds that one request may wait


class Client:
    """Takes leases from the HTTP API of a Wirefence proxy, or, with a url postgresql://…, from
    PostgreSQL by SQL. It is safe for concurrent use.

    Times are in seconds. docs/reference/clients.md describes the arguments.
    """

    def __init__(
        self, url: str, *, token: Token = None, holder: Optional[str] = None, ttl: Optional[float] = None,
        margin: Optional[float] = None, max_hold: Optional[float] = 86400.0, timeout: float = 30.0,
        tls: Optional[ssl.SSLContext] = None, clock: Callable[[], float] = clocks.now,
    ) -> None:
        if margin is not None and not 0 < margin <= (ttl or 3600) / 2:
            raise ValueError(f"margin is {margin}, must be more than 0 seconds and at most half of the ttl")
        self._open: Callable[[], Union[Api, Session]]
        if url.startswith(("postgresql://", "postgres://")):
            if token is not None or tls is not None:
                raise ValueError("token and tls are for the API: the url of a database has all that its connections need")
            self._open = sessions(url)
        else:
            api = Api(url, token, tls)
            self._open = lambda: api
        self._keeping = functools.partial(Keeping, clock=clock, margin=margin, max_hold=max_hold, timeout=timeout)
        self._request: Dict[str, Any] = {"holder": holder or f"{socket.gethostname()}:{os.getpid()}"}
        if ttl is not None:
            self._request["ttl_seconds"] = ttl

    def lease(
        self, resource: str, *, wait: float = 0.0, on_lost: OnLost = None, idempotency_key: Optional[str] = None,
        keep_for: float = 0.0,
    ) -> Leasing:
        """Return a context that acquires the lease on entry and gives it back on exit.

        `with` yields the Lease. Where it was lost meanwhile, the end of the block raises
        LeaseLost; `async with` cancels the block at the loss, and raises LeaseLost. A block that
        ends without an exception leaves the lease taken until keep_for seconds after its grant.
        """
        acquire = functools.partial(self.acquire, resource, wait=wait, idempotency_key=idempotency_key)
        return Leasing(acquire, on_lost, check_keep_for(keep_for))

    def acquire(
        self, resource: str, *, wait: float = 0.0, on_lost: OnLost = None,
        idempotency_key: Optional[str] = None, abort: Optional[Abort] = None,
    ) -> Lease:
        """Win the lease of a resource, or raise.

        wait             seconds to wait for another holder, and for a server that doesn't
                         serve; 0 tries once
        on_lost          called once with the LeaseLost, by another thread, when the lease has
                         ended, unless by release
        idempotency_key  a fresh random text of 16 to 39 letters, digits, - and _; default
                         one that is made up
        abort            its set() ends the waiting, from another thread
        """
        if not resource:
            raise ValueError("the name of a resource is empty")
        keeping = self._keeping(self._open())
        try:
            answer, sent = self._win(keeping, resource, wait, idempotency_key or uuid.uuid4().hex, abort or Abort())
        except BaseException:
            keeping.api.close()
            raise
        lease = Lease(keeping, answer, sent, on_lost)
        try:
            lease.start()
        except BaseException:  # the answer came too late, or no thread can start
            lease.give_back()
            raise
        return lease

    def _win(self, keeping: Keeping, resource: str, wait: float, key: str, abort: Abort) -> Tuple[Dict[str, Any], float]:
        """Ask until the lease is won or the wait is over. Return the answer, and when the request
        that it answers was sent."""
        clock = keeping.clock
        request: Dict[str, Any] = {**self._request, "idempotency_key": key}
        until, pause = clock() + wait, 0.1
        while True:
            sent = clock()
            asked = int(1000 * min(max(0.0, until - sent), MAX_WAIT)) / 1000
            request["wait_seconds"] = asked
            try:
                return keeping.api.call(resource, "acquire", request, asked + keeping.timeout, abort), sent
            except LeaseHeld:
                if not asked:
                    raise
            except Unavailable as error:
                delay = max(pause, error.retry_after)
                if clock() + delay >= until or abort.wait(delay):
                    raise
                pause = min(2 * pause, 2.0)


class Leasing:
    """A context that has the lease of a resource. Enter it once."""

    def __init__(self, acquire: Callable[..., Lease], on_lost: OnLost, keep_for: float) -> None:
        self._acquire, self._on_lost, self._keep_for = acquire, on_lost, keep_for
        self._task: Optional[asyncio.Task[Any]] = None  # while the block runs
        self._cancelled = False

    def __enter__(self) -> Lease:
        self._lease = self._acquire(on_lost=self._on_lost)
        return self._lease

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        lost = self._lease.error
        self._lease.give_back(self._keep_for if kind is None else 0.0)
        if kind is None and lost and lost.cause != "released":
            raise lost

    async def __aenter__(self) -> Lease:
        loop, abort = asyncio.get_running_loop(), Abort()

        def on_lost(error: LeaseLost) -> None:
            loop.call_soon_threadsafe(self._cancel)
            if self._on_lost:
                self._on_lost(error)

        winning = in_thread(lambda: self._acquire(on_lost=on_lost, abort=abort))
        try:
            self._lease = await asyncio.wrap_future(winning)
        except asyncio.CancelledError:
            abort.set()
            in_thread(lambda: winning.result().give_back())
            raise
        self._lease.check()
        self._task = asyncio.current_task()
        return self._lease

    async def __aexit__(self, kind: object, error: Optional[BaseException], trace: object) -> None:
        task, self._task, lost = self._task, None, self._lease.error
        cancelled = isinstance(error, asyncio.CancelledError)
        if self._cancelled:
            if not cancelled:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)  # the block ended before the cancellation reached it
            getattr(task, "uncancel", int)()  # from Python 3.11 on
        keep_for = self._keep_for if error is None else 0.0
        await asyncio.wrap_future(in_thread(lambda: self._lease.give_back(keep_for)))
        if lost and (error is None or cancelled and self._cancelled) and lost.cause != "released":
            raise lost from error

    def _cancel(self) -> None:
        if self._task:
            self._cancelled = self._task.cancel()


def in_thread(work: Callable[[], Any]) -> Future[Any]:
    """Run work in a thread of its own: those of the loop's executor are few, and a release
    must not wait behind acquires. The work goes on if nobody waits for it any more."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="wirefence", daemon=True).start()
    return future
