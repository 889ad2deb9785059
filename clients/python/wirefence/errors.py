"""The errors of the API, of a lease, and of a fenced statement."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, Optional, Type


class WirefenceError(Exception):
    """Base of all errors of this package."""


class ApiError(WirefenceError):
    """The API answered with a problem, an object. `type` is its name in docs/reference/api.md."""

    def __init__(self, detail: str, *, status: int = 0, problem: Optional[Dict[str, Any]] = None) -> None:
        super().__init__(detail)
        self.detail, self.status, self.problem = detail, status, problem or {}
        self.type = str(self.problem.get("type", "")).removeprefix("urn:wirefence:problem:")


class Unavailable(ApiError):
    """The proxy, its lease store or its database didn't serve the request. It isn't known
    whether the request was carried out."""

    retry_after = 0.0  # seconds


class LeaseHeld(ApiError):
    """Another holder has the lease. `held_for` is in seconds, None if unknown."""

    @property
    def held_by(self) -> str:
        return str(self.problem.get("held_by", ""))

    @property
    def held_for(self) -> Optional[float]:
        return self.problem.get("held_for_seconds")


class LeaseLost(WirefenceError):
    """The lease has ended, and never comes back.

    `cause` is expired, unreachable (`__cause__` is the error of the last renewal), lost,
    revoked, failover, max_hold or released.
    """

    def __init__(self, resource: str, token: int, cause: str, detail: str = "") -> None:
        super().__init__(resource, token, cause, detail)  # which pickle calls it with
        self.resource, self.token, self.cause, self.detail = resource, token, cause, detail

    def __str__(self) -> str:
        text = f'lease of "{self.resource}" with token {self.token} has ended: {self.cause}'
        return f"{text}: {self.detail}" if self.detail else text


class Refused(WirefenceError):
    """PostgreSQL or the proxy refused a statement for its fence. `__cause__` is the
    driver's error. Don't retry a refused statement with the same token."""

    sqlstate = condition = ""
    by_sqlstate: Dict[str, Type[Refused]] = {}

    def __init_subclass__(cls, sqlstate: str = "", condition: str = "") -> None:
        if sqlstate:
            cls.sqlstate, cls.condition = sqlstate, condition
            Refused.by_sqlstate[sqlstate] = cls

    def __init__(self, message: str, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.detail, self.hint = detail, hint


class StaleToken(Refused, sqlstate="WF001", condition="stale_fencing_token"):
    """A later holder has superseded the token: stop the work."""
class TokenRequired(Refused, sqlstate="WF002", condition="fencing_token_required"):
    """A guard or the proxy's policy requires a fence, and the statement has none."""
class UnknownToken(Refused, sqlstate="WF003", condition="unknown_fencing_token"):
    """The token was never granted, or comes from another lock service."""
class MalformedToken(Refused, sqlstate="WF004", condition="malformed_fencing_token"):
    """The text is not a fence."""
class TokenReused(Refused, sqlstate="WF005", condition="fencing_token_reused"):
    """A token for one transaction was presented again."""
class CannotBeFenced(Refused, sqlstate="WF006", condition="statement_cannot_be_fenced"):
    """The statement can't run under its fence."""
class LeaseNotHeld(Refused, sqlstate="WF007", condition="lease_not_held"):
    """The sidecar doesn't have its lease."""
class ResourceUnknown(Refused, sqlstate="WF008", condition="unknown_fenced_resource"):
    """Resources must be declared, and this one isn't."""


def refusal(error: Optional[BaseException]) -> Optional[Refused]:
    """Return a driver's error as a Refused, or None if it is not a refusal.

    It knows psycopg, psycopg2 and asyncpg, and errors that wrap one of theirs, as those of
    SQLAlchemy and Django do.
    """
    for _ in range(10):  # errors may wrap each other in a ring
        if error is None or isinstance(error, Refused):
            return error
        kind = Refused.by_sqlstate.get(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or "")
        if kind is not None:
            told = getattr(error, "diag", error)
            message, detail, hint = (
                getattr(told, "message_" + name, None) or getattr(told, other, None) or ""
                for name, other in (("primary", "message"), ("detail", "detail"), ("hint", "hint"))
            )
            refused = kind(message or str(error), detail, hint)
            refused.__cause__ = error
            return refused
        error = getattr(error, "orig", None) or error.__cause__
    return None


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Raise a Refused in place of a driver's error that is a refusal."""
    try:
        yield
    except Exception as error:
        if refused := refusal(error):
            raise refused
        raise
