"""What can go wrong: with the API, with a lease, and with a fenced statement."""

from __future__ import annotations

import contextlib
from typing import Dict, Iterator, Optional, Type


class WirefenceError(Exception):
    """Base of all errors of this package."""


class ApiError(WirefenceError):
    """The API answered with a problem. `type` is its name in docs/api.md."""

    def __init__(self, detail: str, *, status: int = 0, type: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = status
        self.type = type


class Unavailable(ApiError):
    """The proxy, its lease store or its database didn't serve the request.

    It isn't known whether the request was carried out.
    """

    def __init__(self, detail: str, *, status: int = 0, type: str = "", retry_after: float = 0) -> None:
        super().__init__(detail, status=status, type=type)
        self.retry_after = retry_after


class LeaseHeld(ApiError):
    """Another holder has the lease. `held_for` is in seconds, None if unknown."""

    def __init__(self, detail: str, *, held_by: str, held_for: Optional[float] = None) -> None:
        super().__init__(detail, status=409, type="lease-held")
        self.held_by = held_by
        self.held_for = held_for


class LeaseLost(WirefenceError):
    """The lease has ended, and never comes back.

    `cause` is one of

    - ``expired``: it was not renewed in time, since the process or its machine stood still
    - ``unreachable``: it was not renewed in time, since renewals failed; `__cause__` says how
    - ``lost``: another has it, or the lease store has it no more
    - ``revoked``: an operator has locked the holder out
    - ``failover``: the database was promoted or restored
    - ``max_hold``: it reached the longest time that it may be kept
    - ``released``: it was given back
    """

    def __init__(self, resource: str, token: int, cause: str, detail: str = "") -> None:
        text = f'lease of "{resource}" with token {token} has ended: {cause}'
        super().__init__(f"{text}: {detail}" if detail else text)
        self.resource = resource
        self.token = token
        self.cause = cause
        self.detail = detail


class Refused(WirefenceError):
    """PostgreSQL or the proxy refused a statement for its fence. `__cause__` is the
    driver's error. Don't retry a refused statement with the same token."""

    sqlstate = ""
    condition = ""

    def __init__(self, message: str, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.detail = detail
        self.hint = hint


class StaleToken(Refused):
    """A later holder has superseded the token: stop the work."""

    sqlstate, condition = "WF001", "stale_fencing_token"


class TokenRequired(Refused):
    """A guard or the proxy's policy wants a fence, and none came."""

    sqlstate, condition = "WF002", "fencing_token_required"


class UnknownToken(Refused):
    """The token was never granted, or comes from another lock service."""

    sqlstate, condition = "WF003", "unknown_fencing_token"


class MalformedToken(Refused):
    """The text is not a fence."""

    sqlstate, condition = "WF004", "malformed_fencing_token"


class TokenReused(Refused):
    """A token of single use came again."""

    sqlstate, condition = "WF005", "fencing_token_reused"


class CannotBeFenced(Refused):
    """The statement can't run under its fence."""

    sqlstate, condition = "WF006", "statement_cannot_be_fenced"


class LeaseNotHeld(Refused):
    """The sidecar doesn't have its lease."""

    sqlstate, condition = "WF007", "lease_not_held"


class ResourceUnknown(Refused):
    """Resources must be declared, and this one isn't."""

    sqlstate, condition = "WF008", "unknown_fenced_resource"


REFUSALS: Dict[str, Type[Refused]] = {
    kind.sqlstate: kind
    for kind in (
        StaleToken,
        TokenRequired,
        UnknownToken,
        MalformedToken,
        TokenReused,
        CannotBeFenced,
        LeaseNotHeld,
        ResourceUnknown,
    )
}


def refusal(error: Optional[BaseException]) -> Optional[Refused]:
    """Return what a driver's error says as a Refused, or None if it is no refusal.

    It knows psycopg, psycopg2 and asyncpg, and errors that wrap one of theirs, as those of
    SQLAlchemy and Django do.
    """
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, Refused):
            return error
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        kind = REFUSALS.get(state) if isinstance(state, str) else None
        if kind is not None:
            told = getattr(error, "diag", error)
            refused = kind(
                getattr(told, "message_primary", None) or getattr(told, "message", None) or str(error),
                getattr(told, "message_detail", None) or getattr(told, "detail", None) or "",
                getattr(told, "message_hint", None) or getattr(told, "hint", None) or "",
            )
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
        refused = refusal(error)
        if refused is None or refused is error:
            raise
        raise refused from error
