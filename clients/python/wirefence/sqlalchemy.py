"""Fences for SQLAlchemy.

The fence goes into each statement as a comment. So it needs no round trip, holds in
AUTOCOMMIT too, and doesn't stay on a connection that goes back to a pool.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

from sqlalchemy import event

from .errors import refusal
from .fence import Fence


@contextlib.contextmanager
def fenced(target: Any, lease: Fence) -> Iterator[Any]:
    """Put the fence of a lease, or of claims, behind each statement of an Engine or a Connection, or of their
    asynchronous counterparts, while the block runs. Refusals are raised as Refused.
    A lease that has ended raises LeaseLost.

    On an Engine it applies to all threads and tasks that use it.
    """
    target = getattr(target, "sync_engine", None) or getattr(target, "sync_connection", None) or target
    lease.check()
    comment = "\n" + lease.comment()

    def add(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> Any:
        literal = context is not None and context.execution_options.get("no_parameters", False) and not parameters
        if connection.dialect.paramstyle in ("format", "pyformat") and not literal:
            return statement + comment.replace("%", "%%"), parameters
        return statement + comment, parameters

    def translate(context: Any) -> Any:
        return refusal(context.original_exception)

    event.listen(target, "before_cursor_execute", add, retval=True)
    event.listen(target, "handle_error", translate, retval=True)
    try:
        yield target
    finally:
        event.remove(target, "before_cursor_execute", add)
        event.remove(target, "handle_error", translate)
