"""Fences for LangGraph's checkpoints in PostgreSQL: docs/howto/langgraph.md."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import Any, AsyncIterator, Iterator, Mapping

from langgraph.checkpoint.postgres import PostgresSaver as Saver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver as AsyncSaver

from .errors import refusals
from .fence import Fence
from .psycopg import SET_FENCE

KEY = "__wirefence_fence"  # LangGraph keeps what begins so out of a checkpoint's metadata

carried: ContextVar[str] = ContextVar("wirefence_fence", default="")


def fenced(config: Mapping[str, Any], lease: Fence) -> Any:
    """Return the configuration of a run, with the fence of the lease of its thread. It stays that of this
    lease: from the next grant on the run is refused, also where another of the same process has it."""
    lease.check()
    return {**config, "configurable": {**config.get("configurable", {}), KEY: lease.fence}}


@contextlib.contextmanager
def carrying(config: Mapping[str, Any]) -> Iterator[None]:
    token = carried.set(config["configurable"].get(KEY, ""))
    try:
        with refusals():
            yield
    finally:
        carried.reset(token)


class PostgresSaver(Saver):
    """LangGraph's, whose writes carry the fence of their run's configuration. Refusals are raised as Refused."""

    def put(self, config: Any, *args: Any, **options: Any) -> Any:
        with carrying(config):
            return super().put(config, *args, **options)

    def put_writes(self, config: Any, *args: Any, **options: Any) -> None:
        with carrying(config):
            super().put_writes(config, *args, **options)

    @contextlib.contextmanager
    def _cursor(self, **options: Any) -> Iterator[Any]:
        with super()._cursor(**options) as cursor:
            if not (fence := carried.get()):
                yield cursor
                return
            with cursor.connection.transaction():
                cursor.execute(SET_FENCE, [fence])
                yield cursor


class AsyncPostgresSaver(AsyncSaver):
    """LangGraph's, for asyncio, as PostgresSaver."""

    async def aput(self, config: Any, *args: Any, **options: Any) -> Any:
        with carrying(config):
            return await super().aput(config, *args, **options)

    async def aput_writes(self, config: Any, *args: Any, **options: Any) -> None:
        with carrying(config):
            await super().aput_writes(config, *args, **options)

    @contextlib.asynccontextmanager
    async def _cursor(self, **options: Any) -> AsyncIterator[Any]:
        async with super()._cursor(**options) as cursor:
            if not (fence := carried.get()):
                yield cursor
                return
            async with cursor.connection.transaction():
                await cursor.execute(SET_FENCE, [fence])
                yield cursor
