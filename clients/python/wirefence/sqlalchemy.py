"""Fences for SQLAlchemy.

The fence goes into each statement as a comment. So it needs no round trip, holds in
AUTOCOMMIT too, and doesn't stay on a connection that goes back to a pool. That of a lease by SQL
is set in each transaction as well.
"""

from __future__ import annotations

import contextlib
import weakref
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
    target = getattr(target, "sync_connection", None) or getattr(target, "sync_engine", None) or target
    lease.check()
    comment = "\n" + lease.comment()
    bare: Any = weakref.WeakSet()  # connections whose transaction has no fence
    if hasattr(target, "in_transaction") and target.in_transaction():
        bare.add(target)

    def begin(connection: Any) -> None:
        bare.add(connection)

    def add(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> Any:
        if lease.by_sql and statement.startswith("ROLLBACK TO"):
            bare.add(connection)  # of what was set behind the savepoint
        elif lease.by_sql and connection in bare:
            cursor.execute(lease.set_local())  # takes no snapshot: SET TRANSACTION may follow
            bare.remove(connection)
        literal = context is not None and context.execution_options.get("no_parameters", False) and not parameters
        if connection.dialect.paramstyle in ("format", "pyformat") and not literal:
            return statement + comment.replace("%", "%%"), parameters
        return statement + comment, parameters

    def translate(context: Any) -> Any:
        return refusal(context.original_exception) if context.connection is target or target is engine else None

    engine = target.engine  # SQLAlchemy 2 tells of errors there alone
    hooks = (
        (target, "begin", begin, False),
        (target, "before_cursor_execute", add, True),
        (engine, "handle_error", translate, True),
    )
    with contextlib.ExitStack() as listening:
        for where, name, hook, returns in hooks:
            event.listen(where, name, hook, retval=returns)
            listening.callback(event.remove, where, name, hook)
        yield target
