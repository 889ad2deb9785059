"""Fences for Django."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable, Iterator, Optional

from django.db import connection as default
from django.db import transaction

from .errors import refusals
from .fence import Fence

IDLE = 0  # of libpq: no transaction is open


def add(sql: Any, text: str) -> Any:
    if isinstance(sql, bytes):
        return sql + text.encode()
    # The drivers' modules sql have what isn't a text.
    return sql + (text if isinstance(sql, str) else sys.modules[type(sql).__module__].SQL(text))


@contextlib.contextmanager
def fenced(lease: Fence, connection: Optional[Any] = None) -> Iterator[None]:
    """Put the fence of a lease, or of claims, behind each statement of this thread's connection, as a
    comment, while the block runs. Refusals are raised as Refused.
    A lease that has ended raises LeaseLost. That of a lease by SQL is set in each transaction as well,
    and a statement outside of one gets its own.

    connection  one of django.db.connections; default: the default one
    """
    lease.check()
    comment = "\n" + lease.comment()
    target = default if connection is None else connection
    bare = True  # the open transaction has no fence

    def execute(run: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal bare
        # Drivers read placeholders only where there are parameters.
        text = comment if params is None else comment.replace("%", "%%")
        with refusals(), contextlib.ExitStack() as own:
            if lease.by_sql:
                if target.get_autocommit():
                    own.enter_context(transaction.atomic(using=target.alias))
                takes_back = str(sql).startswith("ROLLBACK TO")  # what was set behind its savepoint
                if not takes_back and (bare or target.connection.info.transaction_status == IDLE):
                    context["cursor"].cursor.execute(lease.set_local())
                bare = takes_back
            return run(add(sql, text), params, many, context)

    with target.execute_wrapper(execute):
        yield
