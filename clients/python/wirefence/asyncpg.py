"""Fences for asyncpg."""

from __future__ import annotations

import contextlib
from typing import Any, AsyncIterator

from .errors import refusals
from .fence import Fence


@contextlib.asynccontextmanager
async def transaction(connection: Any, lease: Fence, **options: Any) -> AsyncIterator[Any]:
    """A transaction that carries the fence of a lease, or of claims, until it ends. Refusals are
    raised as Refused.

    It raises LeaseLost, and begins nothing, if the lease has ended, and asyncpg's error if the block
    has caught the error of a statement, so that nothing was committed. In an outer transaction it is a
    savepoint, and the fence stays until the outer one ends. Options are those of connection.transaction.
    """
    lease.check()
    with refusals():
        async with connection.transaction(**options):
            await connection.execute("SELECT set_config('wirefence.token', $1, true)", lease.fence)
            yield connection
            await connection.execute("SELECT")  # a COMMIT of what has failed is no error there
