"""A lease, and the threads that keep it."""

from __future__ import annotations

import logging
import random
import threading
from typing import Any, Callable, Dict, Optional

from .api import Api, Lost, want_term
from .errors import ApiError, LeaseLost, Unavailable

log = logging.getLogger("wirefence")

# A thread that waits looks at the clock this often, in seconds: the wait itself stands still
# while the machine is suspended.
GLANCE = 1.0
RETRY_MIN, RETRY_MAX = 0.025, 1.0


class Lease:
    """One grant: the exclusive use of a resource until it ends.

    It is renewed by a thread of its own, and ends at its deadline whatever the server says.
    The deadline counts from before the last confirmed request was sent, less the margin. It
    is safe for concurrent use.
    """

    def __init__(
        self,
        api: Api,
        answer: Dict[str, Any],
        *,
        sent: float,
        clock: Callable[[], float],
        margin: Optional[float],
        max_hold: Optional[float],
        timeout: float,
        on_lost: Optional[Callable[[LeaseLost], None]],
    ) -> None:
        self.resource: str = answer["resource"]
        self.token: int = int(answer["token_text"])
        self.fence: str = answer["fence"]
        self.holder: str = answer["holder"]
        self.grant_id: str = answer["grant_id"]
        self.ttl: float = answer["ttl_seconds"]
        self.margin: float = self.ttl / 5 if margin is None else margin
        self.ended = threading.Event()
        """Set when the lease has ended, for whatever cause."""

        self._api, self._clock, self._timeout, self._on_lost = api, clock, timeout, on_lost
        self._last = float("inf") if max_hold is None else sent + max_hold
        self._changed = threading.Condition()
        # The fields below are read and written under _changed.
        self._end: Optional[LeaseLost] = None
        self._failure: Optional[ApiError] = None
        self._asking = False
        self._deadline = self._renew_at = 0.0
        self._confirmed(answer, sent)

    def __repr__(self) -> str:
        return f"<Lease {self.fence}{' ended' if self.ended.is_set() else ''}>"

    def comment(self) -> str:
        """The fence as an SQL comment. It stays what it is when the lease has ended: a
        statement without it would not be refused."""
        return f"/*wirefence.token='{self.fence}'*/"

    def set_local(self) -> str:
        """The statement that makes the open transaction carry the fence."""
        return f"SET LOCAL wirefence.token = '{self.fence}'"

    def options(self) -> str:
        """The fence for libpq's connection parameter `options`."""
        return f"-c wirefence.token={self.fence}"

    def check(self) -> None:
        """Raise LeaseLost if the lease has ended. It reads the clock, so it also tells a
        process that was stopped a moment ago."""
        error = self.error
        if error is not None:
            raise LeaseLost(error.resource, error.token, error.cause, error.detail) from error.__cause__

    @property
    def error(self) -> Optional[LeaseLost]:
        """Why the lease has ended; None while it is held."""
        with self._changed:
            ended = self._check()
            error = self._end
        if ended:
            self._tell()
        return error

    def remaining(self) -> float:
        """Seconds until the lease ends if it isn't renewed; 0 if it has ended."""
        with self._changed:
            return 0.0 if self._end else max(0.0, self._deadline - self._clock())

    def release(self) -> bool:
        """End the lease and free the resource. Return whether the lease was still held in
        the lease store. A second call does nothing."""
        with self._changed:
            if self._end and self._end.cause in ("lost", "released"):
                return False
            if not self._end:
                self._finish("released")
            left = self._deadline + self.margin - self._clock()
        if left <= 0:
            return False  # the lease store has let it go
        answer = self._api.call(self.resource, "release", {"grant_id": self.grant_id}, min(self._timeout, max(left, 1.0)))
        return bool(answer["was_held"])

    def start(self) -> None:
        """Start the threads that renew the lease and end it, or raise LeaseLost if its
        deadline has passed already."""
        with self._changed:
            if self._check() and self._end:
                raise self._end
        for work in (self._keep, self._watch):
            threading.Thread(target=work, name=f"wirefence {work.__name__} {self.resource}", daemon=True).start()

    def _confirmed(self, answer: Dict[str, Any], sent: float) -> None:
        self._deadline = min(sent + answer["expires_in_seconds"] - self.margin, self._last)
        self._renew_at = sent + answer["renew_after_seconds"] * random.uniform(0.9, 1.0)

    def _check(self) -> bool:
        """End the lease if its deadline has passed, and report whether it did so now."""
        now = self._clock()
        if self._end or now < self._deadline:
            return False
        if now >= self._last:
            self._finish("max_hold")
        elif self._failure:
            self._finish("unreachable", str(self._failure), self._failure)
        elif self._asking:
            self._finish("unreachable", "no answer to a renewal")
        else:
            self._finish("expired")
        return True

    def _finish(self, cause: str, detail: str = "", error: Optional[Exception] = None) -> None:
        self._end = LeaseLost(self.resource, self.token, cause, detail)
        self._end.__cause__ = error
        self.ended.set()
        self._changed.notify_all()

    def _tell(self) -> None:
        """Log a loss and call on_lost, without the lock."""
        assert self._end is not None
        log.warning("%s", self._end)
        if self._on_lost:
            try:
                self._on_lost(self._end)
            except Exception:
                log.exception("on_lost failed")

    def _watch(self) -> None:
        """End the lease at its deadline, also while a renewal waits for its answer."""
        with self._changed:
            while not self._end:
                if self._check():
                    break
                self._changed.wait(min(GLANCE, max(0.0, self._deadline - self._clock())))
            else:
                return
        self._tell()

    def _keep(self) -> None:
        """Renew the lease until it ends."""
        pause = RETRY_MIN
        while True:
            with self._changed:
                while not self._end and self._clock() < self._renew_at:
                    self._changed.wait(min(GLANCE, max(0.0, self._renew_at - self._clock())))
                if self._end:
                    return
            if self._renew():
                pause = RETRY_MIN
                continue
            with self._changed:
                self._renew_at = self._clock() + random.uniform(pause / 2, pause)
            pause = min(2 * pause, RETRY_MAX)

    def _renew(self) -> bool:
        """Ask once, within half of what is left, so that another try fits in."""
        with self._changed:
            sent = self._clock()
            patience = (self._deadline - sent) / 2
            if patience <= 0:
                return False
            self._asking = True
        answer: Optional[Dict[str, Any]] = None
        failure: Optional[ApiError] = None
        try:
            said = self._api.call(
                self.resource, "renew", {"grant_id": self.grant_id, "ttl_seconds": self.ttl}, min(patience, self._timeout)
            )
            want_term(said)
            answer = said
        except ApiError as error:
            failure = error
        except Exception as error:  # such as of the function that returns the token
            failure = Unavailable(f"no renewal was sent: {error or type(error).__name__}")
            failure.__cause__ = error
        return self._answered(sent, answer, failure)

    def _answered(self, sent: float, answer: Optional[Dict[str, Any]], failure: Optional[ApiError]) -> bool:
        with self._changed:
            ended = self._check()  # an answer that comes too late changes nothing
            if not self._end:
                self._asking, self._failure = False, failure
                if isinstance(failure, Lost):
                    self._finish(failure.cause, failure.detail)
                    ended = True
                elif answer is not None:
                    self._confirmed(answer, sent)
                    self._changed.notify_all()
        if ended:
            self._tell()
        elif failure:
            log.warning("lease of %r not renewed: %s", self.resource, failure)
        return answer is not None
