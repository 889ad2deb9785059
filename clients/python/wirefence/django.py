"""Fences for Django."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Optional

from django.db import connection as default

from .errors import refusals
from .fence import Fence


@contextlib.contextmanager
def fenced(lease: Fence, connection: Optional[Any] = None) -> Iterator[None]:
    """Put the fence of a lease, or of claims, behind each statement of this thread's connection, as a
    comment, while the block runs. Refusals are raised as Refused.
    A lease that has ended raises LeaseLost.

    connection  one of django.db.connections; default: the default one
    """
    lease.check()
    comment = "\n" + lease.comment()

    def execute(run: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        # Drivers read placeholders only where there are parameters.
        text = comment if params is None else comment.replace("%", "%%")
        with refusals():
            return run(sql + text, params, many, context)

    target = default if connection is None else connection
    with target.execute_wrapper(execute):
        yield
