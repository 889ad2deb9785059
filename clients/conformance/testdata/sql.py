"""Writes to a guarded table under a lease that was taken by SQL, by each way to put the fence into a
transaction: DATABASE_URL is of an application's role, LEASES_URL of one with wirefence_issuer."""

import asyncio
import contextlib
import io
import os
import sys

import asyncpg
import django
import psycopg
import psycopg2.sql
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from django.conf import settings

import wirefence
import wirefence.asyncpg
import wirefence.psycopg
import wirefence.sqlalchemy

URL, LEASES = os.environ["DATABASE_URL"], os.environ["LEASES_URL"]
NIGHTLY = "nightly ä%'"  # guards totals
INSERT = "INSERT INTO totals (host) VALUES ('100%')"
TWICE = "INSERT INTO totals (id) SELECT min(id) FROM totals"  # fails

parts = psycopg.conninfo.conninfo_to_dict(URL)
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts["dbname"],
            "USER": parts["user"],
            "HOST": parts["host"],
            "PORT": parts["port"],
        }
    },
    INSTALLED_APPS=[],
)
django.setup()

import django.db  # noqa: E402
from django.db import transaction  # noqa: E402

import wirefence.django  # noqa: E402

plain = URL.partition("?")[0].partition("://")[2]
engine = sqlalchemy.create_engine("postgresql+psycopg2://" + plain, pool_size=1, future=True)


def with_psycopg(lease):
    with psycopg.connect(URL, prepare_threshold=None) as connection, wirefence.psycopg.transaction(connection, lease):
        connection.execute(INSERT)
        try:
            with connection.transaction():
                connection.execute(TWICE)
        except psycopg.errors.UniqueViolation:
            pass
        connection.execute(INSERT)


def with_psycopg2(lease):
    connection = psycopg2.connect(URL)
    with connection, connection.cursor() as cursor, wirefence.refusals():
        cursor.execute(lease.set_local())
        cursor.execute(INSERT)
        cursor.execute("SAVEPOINT one")
        try:
            cursor.execute(TWICE)
        except psycopg2.errors.UniqueViolation:
            cursor.execute("ROLLBACK TO one")
        cursor.execute(INSERT)
    connection.close()


def write_by_sqlalchemy(connection):
    connection.execute(sqlalchemy.text(INSERT))
    try:
        with connection.begin_nested():
            connection.execute(sqlalchemy.text(TWICE))
    except sqlalchemy.exc.IntegrityError:
        pass
    connection.execute(sqlalchemy.text(INSERT))


def with_sqlalchemys_engine(lease):
    with wirefence.sqlalchemy.fenced(engine, lease):
        for _ in range(2):
            with engine.begin() as connection:
                write_by_sqlalchemy(connection)


def with_sqlalchemys_session(lease):
    with wirefence.sqlalchemy.fenced(engine, lease), sqlalchemy.orm.Session(engine, future=True) as unit:
        for _ in range(2):
            unit.execute(sqlalchemy.text("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"))
            unit.execute(sqlalchemy.text(INSERT))
            unit.commit()


def with_sqlalchemys_connection(lease):
    """Its transaction has begun, and what a savepoint takes back comes again."""
    with engine.connect() as connection, connection.begin():
        connection.execute(sqlalchemy.text("SELECT 1"))
        savepoint = connection.begin_nested()
        with wirefence.sqlalchemy.fenced(connection, lease):
            connection.execute(sqlalchemy.text(INSERT))
            savepoint.rollback()
            write_by_sqlalchemy(connection)


def with_django_on_its_own(lease):
    with wirefence.django.fenced(lease), django.db.connection.cursor() as cursor:
        cursor.execute(INSERT + " RETURNING id")
        assert cursor.fetchone()
        cursor.execute("INSERT INTO totals (host) VALUES (%s)", ["100%"])
        cursor.executemany("INSERT INTO totals (host) VALUES (%s)", [["one"], ["two"]])
        sql = sys.modules[type(django.db.connection.connection).__module__.partition(".")[0] + ".sql"]
        for insert in sql.SQL(INSERT), sql.SQL("{}").format(sql.SQL(INSERT)), INSERT.encode():
            cursor.execute(insert)


def with_djangos_transactions(lease):
    with django.db.connection.cursor() as cursor:
        with wirefence.django.fenced(lease):
            for _ in range(2):
                with transaction.atomic():
                    cursor.execute(INSERT)
                    try:
                        with transaction.atomic():
                            cursor.execute(TWICE)
                    except django.db.IntegrityError:
                        pass
                    cursor.execute(INSERT)
        with transaction.atomic():
            sid = transaction.savepoint()
            with wirefence.django.fenced(lease):
                cursor.execute(INSERT)
                transaction.savepoint_rollback(sid)
                cursor.execute(INSERT)


async def by_asyncpg(lease):
    connection = await asyncpg.connect(URL, statement_cache_size=0)
    try:
        async with wirefence.asyncpg.transaction(connection, lease):
            await connection.execute(INSERT)
            try:
                async with connection.transaction():
                    await connection.execute(TWICE)
            except asyncpg.UniqueViolationError:
                pass
            await connection.execute(INSERT)
        try:
            async with wirefence.asyncpg.transaction(connection, lease, isolation="serializable"):
                try:
                    await connection.execute("SELECT 1/0")
                except asyncpg.DivisionByZeroError:
                    pass
        except asyncpg.InFailedSQLTransactionError:
            pass
        else:
            raise AssertionError("a transaction passes for committed")
    finally:
        await connection.close()


async def by_sqlalchemys_async_engine(lease):
    arguments = {"ssl": False, "statement_cache_size": 0, "prepared_statement_cache_size": 0}
    late = sqlalchemy.ext.asyncio.create_async_engine("postgresql+asyncpg://" + plain, connect_args=arguments)
    try:
        with wirefence.sqlalchemy.fenced(late, lease):
            async with late.begin() as connection:
                await connection.run_sync(write_by_sqlalchemy)
        async with late.connect() as connection, connection.begin():
            await connection.execute(sqlalchemy.text("SELECT 1"))
            with wirefence.sqlalchemy.fenced(connection, lease):
                await connection.run_sync(write_by_sqlalchemy)
    finally:
        await late.dispose()


def with_asyncpg(lease):
    asyncio.run(by_asyncpg(lease))


def with_sqlalchemys_async_engine(lease):
    asyncio.run(by_sqlalchemys_async_engine(lease))


def past_psycopgs_cursor(lease):
    """`cursor.connection`"""
    with psycopg.connect(URL) as connection:
        wirefence.psycopg.cursor(connection, lease).connection.execute(INSERT)


def past_sqlalchemy(lease):
    """`engine.raw_connection()`"""
    with wirefence.sqlalchemy.fenced(engine, lease), contextlib.closing(engine.raw_connection()) as connection:
        connection.cursor().execute(INSERT)


def past_sqlalchemys_connection(lease):
    """`connection.connection`"""
    with wirefence.sqlalchemy.fenced(engine, lease), engine.begin() as connection:
        connection.connection.cursor().execute(INSERT)


def past_sqlalchemys_begin(lease):
    """a `COMMIT` in a text"""
    with wirefence.sqlalchemy.fenced(engine, lease), engine.begin() as connection:
        connection.execute(sqlalchemy.text("COMMIT"))
        connection.execute(sqlalchemy.text(INSERT))


def past_sqlalchemy_in_autocommit(lease):
    """the isolation level `AUTOCOMMIT`, under a lease by SQL"""
    with wirefence.sqlalchemy.fenced(engine, lease):
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sqlalchemy.text(INSERT))


def past_django(lease):
    """`cursor.callproc`"""
    with wirefence.django.fenced(lease), django.db.connection.cursor() as cursor:
        cursor.callproc("add_total")


def past_django_by_copy(lease):
    """`cursor.copy_expert`, and psycopg 3's `cursor.copy`"""
    with wirefence.django.fenced(lease), django.db.connection.cursor() as cursor:
        if hasattr(cursor.cursor, "copy_expert"):
            cursor.copy_expert("COPY totals (host) FROM STDIN", io.StringIO("book\n"))
        else:
            with cursor.copy("COPY totals (host) FROM STDIN") as copying:
                copying.write("book\n")


def past_djangos_connection(lease):
    """the driver's connection, `connection.connection`"""
    with wirefence.django.fenced(lease), django.db.connection.connection.cursor() as cursor:
        cursor.execute(INSERT)


def refused(kind, hook, lease):
    try:
        hook(lease)
    except Exception as error:
        told = wirefence.refusal(error) or error
        assert isinstance(told, kind) and NIGHTLY in str(told), error
        return
    raise AssertionError(f"{hook.__name__} was not refused")


def unfenced():
    """What runs behind the hooks carries no fence."""
    with engine.begin() as connection, django.db.connection.cursor() as cursor:
        for run in connection.exec_driver_sql, cursor.execute:
            try:
                run(INSERT.replace("%", "%%") if run == connection.exec_driver_sql else INSERT)
            except Exception as error:
                assert isinstance(wirefence.refusal(error), wirefence.TokenRequired), error
            else:
                raise AssertionError("a write without a fence was accepted")


client = wirefence.Client(LEASES, ttl=60)
for name, hook in list(globals().items()):
    if name.startswith("past_"):
        print(name, flush=True)
        with client.lease(NIGHTLY, wait=10) as lease:
            refused(wirefence.TokenRequired, hook, lease)
    if name.startswith("with_"):
        print(name, flush=True)
        with client.lease(NIGHTLY, wait=10) as lease:
            hook(lease)
            unfenced()
            with psycopg.connect(LEASES) as operator:
                operator.execute("SELECT wirefence.revoke(%s)", [NIGHTLY])
            refused(wirefence.StaleToken, hook, lease)
            assert lease.release() in (True, False)
