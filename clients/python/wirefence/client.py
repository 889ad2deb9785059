"""Winning leases, and using them in `with` and `async with`."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import uuid
from types import TracebackType
from typing import Any, Callable, Dict, Optional, Type, TypeVar

from . import clock as clocks
from .api import Abort, Api, Token, want_term
from .errors import ApiError, LeaseHeld, LeaseLost, Unavailable
from .lease import Lease, log

T = TypeVar("T")

MAX_WAIT = 60.0  # seconds that one request may wait
DAY = 86400.0


class Client:
    """Takes leases from the HTTP API of a Wirefence proxy. It is safe for concurrent use.

    url       where the API is, such as http://127.0.0.1:9433
    token     bearer token, or a function that returns it, asked for each request
    holder    readable name of this process; default host:pid
    ttl       seconds that the lease store keeps a lease that isn't renewed, from 1 to 3600;
              default: the proxy's
    margin    seconds before that at which the work must end; default a fifth of the ttl
    max_hold  seconds that a lease may be kept, renewals included; default a day, None: no limit
    timeout   seconds that a request may take, besides the time that the server waits
    tls       context for https; default: the system's certificates
    clock     returns seconds; default: a clock that never jumps
    """

    def __init__(
        self,
        url: str,
        *,
        token: Token = None,
        holder: Optional[str] = None,
        ttl: Optional[float] = None,
        margin: Optional[float] = None,
        max_hold: Optional[float] = DAY,
        timeout: float = 30.0,
        tls: Optional[ssl.SSLContext] = None,
        clock: Callable[[], float] = clocks.now,
    ) -> None:
        if ttl is not None and not 1 <= ttl <= 3600:
            raise ValueError(f"ttl is {ttl}, must be from 1 to 3600 seconds")
        if margin is not None and not 0 < margin:
            raise ValueError(f"margin is {margin}, must be more than 0 seconds")
        if margin is not None and ttl is not None and margin > ttl / 2:
            raise ValueError(f"margin is {margin}, must be at most half of the ttl")
        if max_hold is not None and max_hold <= 0:
            raise ValueError(f"max_hold is {max_hold}, must be more than 0 seconds or None")
        self._api = Api(url, token, tls)
        self._holder = holder or f"{socket.gethostname()}:{os.getpid()}"
        self._ttl, self._margin, self._max_hold = ttl, margin, max_hold
        self._timeout, self._clock = timeout, clock

    def lease(
        self,
        resource: str,
        *,
        wait: float = 0.0,
        on_lost: Optional[Callable[[LeaseLost], None]] = None,
        idempotency_key: Optional[str] = None,
    ) -> Leasing:
        """Return a context that takes the lease on entry and gives it back on exit.

        `with` yields the Lease. Where it was lost meanwhile, the end of the block raises
        LeaseLost; `async with` cancels the block at the loss, and raises LeaseLost.
        """
        return Leasing(self, resource, wait, on_lost, idempotency_key)

    def acquire(
        self,
        resource: str,
        *,
        wait: float = 0.0,
        on_lost: Optional[Callable[[LeaseLost], None]] = None,
        idempotency_key: Optional[str] = None,
        abort: Optional[Abort] = None,
    ) -> Lease:
        """Win the lease of a resource, or raise.

        wait             seconds; 0 tries once. Another holder, and a server that doesn't
                         serve, are waited for
        on_lost          called once with a LeaseLost, mostly by another thread, when the
                         lease has ended, unless by release
        idempotency_key  a fresh random text of 16 to 39 letters, digits, - and _; default
                         one that is made up
        """
        if not resource:
            raise ValueError("the name of a resource is empty")
        abort = abort or Abort()
        request: Dict[str, Any] = {"holder": self._holder, "idempotency_key": idempotency_key or uuid.uuid4().hex}
        if self._ttl is not None:
            request["ttl_seconds"] = self._ttl
        answer, sent = self._win(resource, request, wait, abort)
        lease = Lease(
            self._api,
            answer,
            sent=sent,
            clock=self._clock,
            margin=self._margin,
            max_hold=self._max_hold,
            timeout=self._timeout,
            on_lost=on_lost,
        )
        if abort.wanted.is_set():
            give_back(lease)
            raise Unavailable("the request was aborted")
        try:
            lease.start()
        except LeaseLost:  # the answer came too late
            give_back(lease)
            raise
        return lease

    def _win(self, resource: str, request: Dict[str, Any], wait: float, abort: Abort) -> tuple[Dict[str, Any], float]:
        """Ask until the lease is won or the wait is over; return the answer, and when the
        request that it answers was sent."""
        until, pause = self._clock() + wait, 0.1
        while True:
            sent = self._clock()
            asked = min(max(0.0, until - sent), MAX_WAIT)
            request["wait_seconds"] = int(asked * 1000) / 1000
            try:
                answer = self._api.call(resource, "acquire", request, asked + self._timeout, abort)
                want_term(answer)
                return answer, sent
            except LeaseHeld:
                if asked <= 0.001:
                    raise
            except Unavailable as error:
                delay = max(pause, error.retry_after)
                if self._clock() + delay >= until or abort.wanted.wait(delay):
                    raise
                pause = min(2 * pause, 2.0)


def give_back(lease: Lease) -> None:
    """Release a lease, which expires by itself where that fails."""
    try:
        lease.release()
    except ApiError as error:
        log.warning("lease of %r not released, it will expire: %s", lease.resource, error)


class Leasing:
    """A context that has the lease of a resource. Enter it once."""

    def __init__(
        self,
        client: Client,
        resource: str,
        wait: float,
        on_lost: Optional[Callable[[LeaseLost], None]],
        idempotency_key: Optional[str],
    ) -> None:
        self._client, self._resource, self._wait = client, resource, wait
        self._on_lost, self._key = on_lost, idempotency_key
        self._lease: Optional[Lease] = None
        self._over = self._cancelled = False

    def __enter__(self) -> Lease:
        self._lease = self._client.acquire(
            self._resource, wait=self._wait, on_lost=self._on_lost, idempotency_key=self._key
        )
        return self._lease

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        assert self._lease is not None
        lost = self._lease.error
        give_back(self._lease)
        if kind is None and lost is not None and lost.cause != "released":
            raise lost

    async def __aenter__(self) -> Lease:
        loop, task, abort = asyncio.get_running_loop(), current_task(), Abort()

        def end_block() -> None:
            if not self._over:
                self._cancelled = True
                task.cancel()

        def on_lost(error: LeaseLost) -> None:
            if self._on_lost:
                self._on_lost(error)
            loop.call_soon_threadsafe(end_block)

        winning = in_thread(
            lambda: self._client.acquire(
                self._resource, wait=self._wait, on_lost=on_lost, idempotency_key=self._key, abort=abort
            )
        )
        try:
            lease = await asyncio.shield(winning)
        except asyncio.CancelledError:
            abort.set()
            winning.add_done_callback(release_unwanted)
            raise
        self._lease = lease
        return lease

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        assert self._lease is not None
        self._over = True
        lost, lease = self._lease.error, self._lease
        if self._cancelled:
            await self._take_back_cancel(kind)
        await asyncio.shield(in_thread(lambda: give_back(lease)))
        if lost is None or lost.cause == "released":
            return
        if kind is None or self._cancelled and issubclass(kind, asyncio.CancelledError):
            raise lost from error

    async def _take_back_cancel(self, kind: Optional[Type[BaseException]]) -> None:
        """Make the task that was cancelled for the loss go on."""
        if kind is None or not issubclass(kind, asyncio.CancelledError):
            try:
                await asyncio.sleep(0)  # the block ended before the cancellation reached it
            except asyncio.CancelledError:
                pass
        uncancel = getattr(current_task(), "uncancel", None)  # from Python 3.11 on
        if uncancel:
            uncancel()


def current_task() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task is not None  # it runs in a coroutine
    return task


def in_thread(work: Callable[[], T]) -> "asyncio.Future[T]":
    """Run work in a thread of its own: those of the loop's executor are few, and a release
    must not wait behind acquires."""
    loop = asyncio.get_running_loop()
    future: "asyncio.Future[T]" = loop.create_future()

    def settle(done: Callable[[Any], None], outcome: Any) -> None:
        if not future.cancelled():
            done(outcome)

    def run() -> None:
        done: Callable[[Any], None]
        outcome: Any
        try:
            done, outcome = future.set_result, work()
        except Exception as error:
            done, outcome = future.set_exception, error
        try:
            loop.call_soon_threadsafe(settle, done, outcome)
        except RuntimeError:  # the loop is closed
            if isinstance(outcome, Lease):
                give_back(outcome)

    threading.Thread(target=run, name="wirefence", daemon=True).start()
    return future


def release_unwanted(winning: "asyncio.Future[Lease]") -> None:
    """Free a lease that was won after its task was cancelled."""
    if not winning.cancelled() and winning.exception() is None:
        lease = winning.result()
        threading.Thread(target=give_back, args=(lease,), name="wirefence", daemon=True).start()
