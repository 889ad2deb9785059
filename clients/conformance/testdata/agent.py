"""Runs of a thread of LangGraph, whose lease is revoked in the middle of one: DATABASE_URL is of an application's
role, LEASES_URL of one with wirefence_issuer. Told to set up, it only creates the checkpointer's tables."""

import asyncio
import os
import sys
import time

import psycopg
from langgraph.graph import START, MessagesState, StateGraph

import wirefence
from wirefence.langgraph import AsyncPostgresSaver, PostgresSaver, fenced

URL, LEASES = os.environ["DATABASE_URL"], os.environ["LEASES_URL"]
CONFIG = {"configurable": {"thread_id": "42"}}
late = False


def revoke():
    with psycopg.connect(LEASES, autocommit=True) as operator:
        # It would end a transaction that still writes a checkpoint, and the session with it.
        while operator.execute("SELECT writers FROM wirefence.status() WHERE resource = 'checkpoint:42'").fetchone()[0]:
            time.sleep(0.01)
        operator.execute("SELECT wirefence.revoke('checkpoint:42')")


def think(state):
    return {"messages": [("ai", "thought")]}


def act(state):
    if late:
        revoke()
    return {"messages": [("ai", "acted")]}


def built(saver):
    builder = StateGraph(MessagesState).add_node(think).add_node(act)
    return builder.add_edge(START, "think").add_edge("think", "act").compile(checkpointer=saver)


def refused(kind, run):
    try:
        run()
    except kind as error:
        assert error.__cause__ is not None and "checkpoint:42" in str(error), error
        return
    raise AssertionError("the run was not refused")


def by_threads():
    global late
    with PostgresSaver.from_conn_string(URL) as saver:
        if "setup" in sys.argv:
            return saver.setup()
        graph = built(saver)
        for durability in "sync", "async", "exit":
            with client.lease("checkpoint:42", wait=10) as lease:
                config = fenced(CONFIG, lease)
                late = False
                graph.invoke({"messages": [("human", "go")]}, config, durability=durability)
                graph.update_state(config, {"messages": [("human", "more")]})
                late = True
                refused(wirefence.StaleToken, lambda: graph.invoke({"messages": [("human", "go")]}, config, durability=durability))
                with client.lease("checkpoint:42", wait=10):  # of this process, too
                    refused(wirefence.StaleToken, lambda: graph.invoke({"messages": []}, config, durability=durability))
                lease.release()
        late = False
        refused(wirefence.TokenRequired, lambda: graph.invoke({"messages": []}, CONFIG))
        assert "wirefence" not in str(next(saver.list(CONFIG)).metadata)


async def by_tasks():
    async with AsyncPostgresSaver.from_conn_string(URL) as saver:
        graph = built(saver)
        lease = await asyncio.to_thread(client.acquire, "checkpoint:42", wait=10)
        config = fenced(CONFIG, lease)
        await graph.ainvoke({"messages": [("human", "go")]}, config)
        before = len((await graph.aget_state(CONFIG)).values["messages"])
        revoke()
        try:
            await graph.ainvoke({"messages": [("human", "go")]}, config)
        except wirefence.StaleToken:
            assert len((await graph.aget_state(CONFIG)).values["messages"]) == before
        else:
            raise AssertionError("the run was not refused")


client = wirefence.Client(LEASES, ttl=60)
by_threads()
if "setup" not in sys.argv:
    asyncio.run(by_tasks())
