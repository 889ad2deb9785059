"""A lease, and the threads that renew and end it."""

from __future__ import annotations

import logging
import math
import os
import random
import threading
from typing import Any, Callable, Dict, NamedTuple, Optional, Union

from .api import Api
from .database import Session
from .errors import ApiError, LeaseLost
from .fence import Fence

log = logging.getLogger("wirefence")

GLANCE = 1.0  # seconds between looks at the clock: a wait stands still in a suspended machine

MAX_KEEP = 3600.0  # seconds, the longest time to live that the API allows

OnLost = Optional[Callable[[LeaseLost], None]]


class Keeping(NamedTuple):
    """The settings by which a client keeps its leases, in seconds."""

    api: Union[Api, Session]
    clock: Callable[[], float]
    margin: Optional[float]
    max_hold: Optional[float]
    timeout: float


def check_keep_for(keep_for: float) -> float:
    if not 0 <= keep_for <= MAX_KEEP:
        raise ValueError(f"keep_for is {keep_for}, must be 0 to {MAX_KEEP:.0f} seconds")
    return keep_for


class Lease(Fence):
    """One grant: the exclusive use of a resource until it ends.

    It ends at its deadline whatever the server says. That counts from before the last
    confirmed request was sent, less the margin. It is safe for concurrent use.
    """

    def __init__(self, keeping: Keeping, answer: Dict[str, Any], sent: float, on_lost: OnLost) -> None:
        super().__init__(answer["fence"])
        self.resource: str = answer["resource"]
        self.token: int = int(answer["token_text"])
        self.grant_id: str = answer["grant_id"]
        self.ttl: float = answer["ttl_seconds"]
        self.margin: float = self.ttl / 5 if keeping.margin is None else keeping.margin
        self.by_sql = keeping.api.by_sql
        self.ended = threading.Event()
        """Set when the lease has ended, for whatever cause."""

        self._keeping, self._on_lost, self._pid = keeping, on_lost or (lambda lost: None), os.getpid()
        self._clock: Callable[[], float] = keeping.clock
        self._last: float = float("inf") if keeping.max_hold is None else sent + keeping.max_hold
        self._granted: float = keeping.clock()
        self._changed = threading.Condition()
        # The fields below are read and written under _changed.
        self._end: Optional[LeaseLost] = None
        self._failure: Optional[Exception] = None  # of the last renewal, while it waits too
        self._asking = False  # a renewal waits for its answer
        self._confirmed(answer, sent)

    def check(self) -> None:
        """Raise LeaseLost if the lease has ended. It reads the clock, so it also tells a
        process that was stopped a moment ago."""
        if error := self.error:
            raise error.with_traceback(None)

    @property
    def error(self) -> Optional[LeaseLost]:
        """Why the lease has ended; None while it is held."""
        with self._changed:
            now = self._clock()
            if self._end is None and now >= self._deadline:
                if now >= self._last:
                    self._finish("max_hold")
                elif self._failure:
                    self._finish("unreachable", str(self._failure), self._failure)
                else:
                    self._finish("expired")
            return self._end

    def remaining(self) -> float:
        """Seconds until the lease ends if it isn't renewed; 0 if it has ended."""
        with self._changed:
            return 0.0 if self.error else max(0.0, self._deadline - self._clock())

    def release(self) -> bool:
        """End the lease and free the resource. Return whether the lease was still held in
        the lease store. A second call does nothing."""
        with self._changed:
            if self._end and self._end.cause in ("lost", "released"):
                return False
            if not self.error:
                self._finish("released")
            left = self._expires - self._clock()
        if left <= 0:
            return False  # the lease store has let it go
        return bool(self._call_last("release", {})["was_held"])

    def keep(self, keep_for: float) -> bool:
        """End the lease when its work has succeeded, but leave it taken until so many seconds
        after its grant, 0 to 3600. Return whether it was still held in the lease store. If that
        time has passed, or the lease has ended, this is a release. A release behind it does
        nothing."""
        until = self._granted + check_keep_for(keep_for)
        with self._changed:
            while self._asking and not self.error and self._clock() < until:  # it would shorten the time
                self._changed.wait(min(GLANCE, max(0.0, self._deadline - self._clock())))
            now = self._clock()
            kept = not self.error and now < until
            if kept:
                self._finish("released")
        if not kept:
            return self.release()
        try:
            self._call_last("renew", {"ttl_seconds": max(1.0, math.ceil((until - now) * 1000) / 1000)})
        except ApiError as error:
            if error.type != "lease-lost":
                raise
            return False
        return True

    def give_back(self, keep_for: float = 0.0) -> None:
        """Release the lease, or keep it. If that fails, it expires by itself. A forked process
        leaves the lease to its parent."""
        try:
            if self._pid == os.getpid():
                self.keep(keep_for)
        except ApiError as error:
            log.warning("cannot release lease of %r, it will expire: %s", self.resource, error)

    def start(self) -> None:
        """Start the threads that renew the lease and end it, or raise LeaseLost if its
        deadline has passed already."""
        self.check()
        for work in (self._keep, self._watch):
            threading.Thread(target=work, name=f"wirefence {work.__name__} {self.resource}", daemon=True).start()

    def _call(self, operation: str, body: Dict[str, Any], patience: float) -> Dict[str, Any]:
        timeout = min(patience, self._keeping.timeout)
        return self._keeping.api.call(self.resource, operation, {"grant_id": self.grant_id, **body}, timeout)

    def _call_last(self, operation: str, body: Dict[str, Any]) -> Dict[str, Any]:
        """Without an answer this ends within a second of the deadline: the lease expires by itself."""
        try:
            return self._call(operation, body, max(self._deadline - self._clock(), 1.0))
        finally:
            self._keeping.api.close()

    def _confirmed(self, answer: Dict[str, Any], sent: float) -> None:
        self._expires: float = sent + answer["expires_in_seconds"]  # in the lease store, or earlier
        self._deadline: float = min(self._expires - self.margin, self._last)
        self._renew_at: float = sent + answer["renew_after_seconds"] * random.uniform(0.9, 1.0)

    def _finish(self, cause: str, detail: str = "", error: Optional[Exception] = None) -> None:
        self._end = LeaseLost(self.resource, self.token, cause, detail)
        self._end.__cause__ = error
        self.ended.set()
        self._changed.notify_all()

    def _watch(self) -> None:
        """End the lease at its deadline, even while a renewal waits for its answer, and
        report its loss."""
        with self._changed:
            while not (lost := self.error):
                self._changed.wait(min(GLANCE, max(0.0, self._deadline - self._clock())))
        if lost.cause != "released":
            self._keeping.api.close()
            log.warning("%s", lost)
            try:
                self._on_lost(lost)
            except Exception:
                log.exception("on_lost failed")

    def _keep(self) -> None:
        """Renew the lease until it ends. A try takes half of the remaining time, so that
        another fits in. It follows a failed try after a twentieth of the ttl, or a bit earlier."""
        while True:
            with self._changed:
                while not self.error and self._clock() < self._renew_at:
                    self._changed.wait(min(GLANCE, max(0.0, self._renew_at - self._clock())))
                if self._end:
                    return
                sent, self._failure = self._clock(), self._failure or ApiError("no answer to a renewal")
                self._asking = True
                patience = (self._deadline - sent) / 2
            failure: Optional[Exception] = None
            try:
                answer = self._call("renew", {"ttl_seconds": self.ttl}, patience)
            except Exception as error:  # also of the function that returns the token
                failure = error
            with self._changed:
                self._asking = False
                self._changed.notify_all()
                if self.error:
                    return  # an answer that comes too late changes nothing
                self._failure = failure
                if not failure:
                    self._confirmed(answer, sent)
                elif isinstance(failure, ApiError) and failure.type == "lease-lost":
                    self._finish(str(failure.problem.get("cause", "lost")), failure.detail)
                else:
                    log.warning("lease of %r not renewed: %s", self.resource, failure)
                    self._renew_at = self._clock() + self.ttl / 20 * random.uniform(0.5, 1.0)
