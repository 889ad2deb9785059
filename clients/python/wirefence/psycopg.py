"""Fences for psycopg 3."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

import psycopg
from psycopg import sql

from .errors import WirefenceError, refusals
from .fence import Fence

SET_FENCE = "SELECT set_config('wirefence.token', %s, true)"


@contextlib.contextmanager
def transaction(connection: "psycopg.Connection[Any]", lease: Fence) -> Iterator["psycopg.Connection[Any]"]:
    """A transaction that carries the fence of a lease, or of claims, until it ends.

    It raises LeaseLost, and begins nothing, if the lease has ended, and a WirefenceError if the
    block has caught the error of a statement, so that nothing was committed. In an outer
    transaction it is a savepoint, and the fence stays until the outer one ends.
    """
    lease.check()
    with refusals(), connection.transaction():
        connection.execute(SET_FENCE, [lease.fence])
        yield connection
        if connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR:
            raise WirefenceError("the transaction was rolled back, since a statement in it had failed")


def cursor(connection: "psycopg.Connection[Any]", lease: Fence) -> "psycopg.Cursor[Any]":
    """A cursor that puts the fence of a lease, or of claims, behind each statement, as a comment."""
    made = FencedCursor(connection)
    made.wirefence_comment = lease.comment()
    return made


class FencedCursor(psycopg.Cursor):  # type: ignore[type-arg]
    """Adds a comment to what it executes, and raises refusals as Refused."""

    wirefence_comment = ""

    def _fenced(self, query: Any, params: Any) -> Any:
        # psycopg reads placeholders only where there are parameters.
        comment = self.wirefence_comment if params is None else self.wirefence_comment.replace("%", "%%")
        if isinstance(query, bytes):
            return query + b"\n" + comment.encode()
        if isinstance(query, sql.Composable):
            return query + sql.SQL("\n" + comment)
        return query + "\n" + comment

    def execute(self, query: Any, params: Any = None, **options: Any) -> "FencedCursor":
        with refusals():
            return super().execute(self._fenced(query, params), params, **options)

    def executemany(self, query: Any, params_seq: Any, **options: Any) -> None:
        with refusals():
            super().executemany(self._fenced(query, params_seq), params_seq, **options)

    def stream(self, query: Any, params: Any = None, **options: Any) -> Iterator[Any]:
        with refusals():
            yield from super().stream(self._fenced(query, params), params, **options)

    @contextlib.contextmanager
    def copy(self, statement: Any, params: Any = None, **options: Any) -> Iterator[Any]:
        with refusals(), super().copy(self._fenced(statement, params), params, **options) as copying:
            yield copying
