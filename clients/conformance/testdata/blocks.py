"""Uses leases of the client for Python in `with` and `async with`. It ends with 0 if all is as it
is documented."""

import asyncio
import json
import os
import pickle
import queue
import signal
import socket
import sys
import threading
import time
import urllib.request
from unittest import mock

import psycopg

import wirefence

API, ADMIN, TOKEN = os.environ["API"], os.environ["ADMIN"], os.environ["API_TOKEN"]
BY_SQL = API.startswith("postgresql:")
client = wirefence.Client(API, token=None if BY_SQL else lambda: TOKEN, holder="blocks", ttl=5)


def revoke(resource):
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + TOKEN}
    with urllib.request.urlopen(urllib.request.Request(f"{ADMIN}/v1/resources/{resource}/revoke", b"{}", headers)) as answer:
        assert json.load(answer)["lease_freed"]


def is_free(resource):
    with client.lease(resource):
        return True


def raises(kind, work, *args):
    try:
        work(*args)
    except kind as error:
        return error
    raise AssertionError(f"{work} raised no {kind}")


def a_block_frees_the_resource():
    with client.lease("with") as lease:
        held = raises(wirefence.LeaseHeld, is_free, "with")
        assert held.held_by.startswith(lease.grant_id.partition("/")[0] + "/"), held.held_by
        assert not any(lease.grant_id in told for told in (repr(lease), repr(held), repr(held.problem)))
    assert is_free("with")
    assert raises(wirefence.LeaseLost, lease.check).cause == "released"

    def fails():
        with client.lease("with"):
            raise KeyError("mine")

    raises(KeyError, fails)
    assert is_free("with")


def a_block_tells_of_a_loss():
    told = queue.Queue()

    def work():
        with client.lease("lost", on_lost=told.put) as lease:
            lease.check()
            revoke("lost")
            assert lease.ended.wait(10)
            assert raises(wirefence.LeaseLost, lease.check).cause == "revoked"
            assert lease.remaining() == 0

    assert raises(wirefence.LeaseLost, work).cause == "revoked"
    assert told.get(timeout=10).cause == "revoked"
    assert told.empty()


def a_forked_child_leaves_the_lease_to_its_parent():
    with client.lease("forked") as lease:
        child = os.fork()
        if child == 0:
            try:
                lease.give_back()  # as the end of a block does
                raises(wirefence.LeaseHeld, is_free, "forked")
                os._exit(0 if is_free("the child's") else 1)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        raises(wirefence.LeaseHeld, is_free, "forked")
        assert lease.release()


def a_lease_that_no_thread_can_keep_is_given_back():
    start, left = threading.Thread.start, [1]

    def fails(thread):
        if thread.name.startswith("wirefence"):
            if not left:
                raise RuntimeError("can't start new thread")
            left.pop()
        start(thread)

    threading.Thread.start = fails
    try:
        raises(RuntimeError, client.acquire, "threadless")
    finally:
        threading.Thread.start = start
    assert is_free("threadless")


def an_error_in_a_renewal_stops_no_renewals():
    with client.lease("renewed") as lease:
        call, failures = lease._keeping.api.call, [KeyError("one"), RuntimeError("two")]

        def fails(resource, operation, *args):
            if operation == "renew" and failures:
                raise failures.pop()
            return call(resource, operation, *args)

        with mock.patch.object(lease._keeping.api, "call", fails):
            assert not lease.ended.wait(6)
            assert not failures


def an_interrupted_wait_leaves_no_lease():
    """A server that doesn't answer doesn't keep signals away, either."""
    silent = socket.create_server(("127.0.0.1", 0))
    scheme = API.partition(":")[0]
    for waits in (
        lambda: client.acquire("interrupted", wait=30),
        lambda: wirefence.Client(f"{scheme}://127.0.0.1:{silent.getsockname()[1]}").acquire("interrupted"),
    ):
        with client.lease("interrupted"):
            began = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            raises(KeyboardInterrupt, waits)
            assert time.monotonic() - began < 10
        with client.lease("interrupted", wait=30) as lease:  # the proxy may give back what it won
            lease.check()
    silent.close()


def sessions_of(application):
    """The sessions that a client by SQL has, and what others can read of each."""
    with psycopg.connect(API) as looking:
        sql = "SELECT pid, query FROM pg_stat_activity WHERE application_name = %s AND datname = current_database()"
        return looking.execute(sql, [application]).fetchall()


def a_lease_by_sql_has_a_session_of_its_own(driver):
    with mock.patch.dict(sys.modules, {} if driver == "psycopg" else {"psycopg": None}):
        own = wirefence.Client(API + "&application_name=mine", ttl=3)
    with own.lease("session") as lease:
        for _ in range(2):  # it comes again after it was ended
            [(pid, query)] = sessions_of("mine")
            assert lease.grant_id not in query, query
            with psycopg.connect(API) as ending:
                ending.execute("SELECT pg_terminate_backend(%s)", [pid])
            assert not lease.ended.wait(3)
            assert pid != sessions_of("mine")[0][0]
        with psycopg.connect(API) as ending:
            ending.execute("SELECT pg_terminate_backend(%s)", [sessions_of("mine")[0][0]])
        assert lease.release()
    assert is_free("session")
    end = time.monotonic() + 10
    while sessions_of("mine"):
        assert time.monotonic() < end


def without_a_driver_it_says_what_to_install():
    with mock.patch.dict(sys.modules, {"psycopg": None, "psycopg2": None}):
        assert "pip install" in str(raises(ImportError, wirefence.Client, API))


def a_server_that_refuses_says_why():
    """What no time mends isn't waited for, and a password isn't told."""
    database = API.partition("?")[0].rpartition("/")[2]
    for url, told in ((API.replace("leases@", "app@"), "GRANT wirefence_issuer"), (API.replace(database, "postgres"), "wirefence")):
        began = time.monotonic()
        error = raises(wirefence.ApiError, lambda: wirefence.Client(url).acquire("refused", wait=30))
        assert not isinstance(error, wirefence.Unavailable) and told in str(error), error
        assert time.monotonic() - began < 10
    raises(ValueError, lambda: wirefence.Client(API, token="t"))


def errors_can_be_pickled():
    for error in (
        wirefence.LeaseLost("orders", 34, "revoked", "by an operator"),
        wirefence.LeaseHeld("held", status=409, problem={"held_by": "a/1"}),
        wirefence.StaleToken("stale", "detail", "hint"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error) and str(copy) == str(error) and vars(copy) == vars(error), copy


def a_url_with_a_password_is_refused_without_telling_it():
    for url in (
        "http://me:secret@127.0.0.1:1",
        "POSTGRES://me:secret@127.0.0.1",
        " postgresql://me:secret@127.0.0.1",
        "postgresql+psycopg2://me:secret@127.0.0.1/app",
        "postgresql://me:secret%zz@127.0.0.1/app",
        "postgresql://me:secret@127.0.0.1/app?no_such_parameter=1",
    ):
        assert "secret" not in str(raises(ValueError, wirefence.Client, url))


def a_released_lease_keeps_no_thread():
    end = time.monotonic() + 10
    while any(thread.name.startswith("wirefence") for thread in threading.enumerate()):
        assert time.monotonic() < end, threading.enumerate()
        time.sleep(0.01)


async def a_loss_cancels_the_block():
    began = time.monotonic()
    try:
        async with client.lease("async"):
            await asyncio.to_thread(revoke, "async")
            await asyncio.sleep(30)
    except wirefence.LeaseLost as lost:
        assert lost.cause == "revoked"
    else:
        raise AssertionError("the block went on")
    assert time.monotonic() - began < 10
    await asyncio.sleep(0)  # nothing is left of the cancellation
    async with client.lease("async") as lease:
        lease.check()
    assert is_free("async")


async def a_loss_ahead_of_the_block_cancels_nothing():
    leasing = client.lease("ahead")
    acquire = leasing._acquire

    def acquire_and_lose(**options):
        lease = acquire(**options)
        revoke("ahead")
        assert lease.ended.wait(10)
        time.sleep(0.1)  # its cancellation comes before the lease
        return lease

    leasing._acquire = acquire_and_lose
    try:
        async with leasing:
            raise AssertionError("the block began")
    except wirefence.LeaseLost as lost:
        assert lost.cause == "revoked"
    await asyncio.sleep(0.01)


async def a_block_that_ends_by_itself_tells_of_a_loss():
    try:
        async with client.lease("ends") as lease:
            revoke("ends")
            assert lease.ended.wait(10)  # the loop stands still, so no cancellation comes
    except wirefence.LeaseLost as lost:
        assert lost.cause == "revoked"
    else:
        raise AssertionError("the loss was not told")
    await asyncio.sleep(0.01)


async def a_cancelled_block_stays_cancelled():
    async def work():
        async with client.lease("cancelled"):
            await asyncio.sleep(30)

    task = asyncio.ensure_future(work())
    while not task.done():
        await asyncio.sleep(0.2)
        task.cancel()
    assert task.cancelled()
    assert is_free("cancelled")


async def an_async_block_keeps_the_lease_if_it_ends_well():
    async with client.lease("kept", keep_for=600):
        pass
    raises(wirefence.LeaseHeld, is_free, "kept")
    for error in (KeyError, asyncio.CancelledError):
        try:
            async with client.lease("not kept", keep_for=600):
                raise error
        except error:
            pass
        assert is_free("not kept")


async def a_cancelled_wait_leaves_no_lease():
    with client.lease("waited"):

        async def work():
            async with client.lease("waited", wait=30):
                raise AssertionError("won")

        waiting = asyncio.ensure_future(work())
        await asyncio.sleep(0.3)
        waiting.cancel()
        try:
            await waiting
        except asyncio.CancelledError:
            pass
    with client.lease("waited", wait=30) as lease:  # the proxy may give back what it won
        lease.check()


def many_wait_in_tasks_and_all_get_it():
    """More than the threads of the loop's executor wait, and the holder still releases."""

    async def work():
        async with client.lease("many", wait=30):
            await asyncio.sleep(0)

    async def all_of_them():
        await asyncio.gather(*[work() for _ in range(40)])

    asyncio.run(all_of_them())


signal.signal(signal.SIGALRM, signal.default_int_handler)
a_block_frees_the_resource()
a_block_tells_of_a_loss()
a_forked_child_leaves_the_lease_to_its_parent()
a_lease_that_no_thread_can_keep_is_given_back()
an_error_in_a_renewal_stops_no_renewals()
an_interrupted_wait_leaves_no_lease()
errors_can_be_pickled()
a_url_with_a_password_is_refused_without_telling_it()
for block in (
    a_loss_cancels_the_block,
    a_loss_ahead_of_the_block_cancels_nothing,
    a_block_that_ends_by_itself_tells_of_a_loss,
    a_cancelled_block_stays_cancelled,
    an_async_block_keeps_the_lease_if_it_ends_well,
    a_cancelled_wait_leaves_no_lease,
):
    asyncio.run(block())
many_wait_in_tasks_and_all_get_it()
if BY_SQL:
    a_lease_by_sql_has_a_session_of_its_own("psycopg")
    a_lease_by_sql_has_a_session_of_its_own("psycopg2")
    without_a_driver_it_says_what_to_install()
    a_server_that_refuses_says_why()
a_released_lease_keeps_no_thread()
sys.stdout.write("all as documented\n")
