"""Writes by each hook of the client for Python: once for each argument, and again when it is
told to. Each line that it prints is a hook with what came of its write."""

import json
import os
import sys

import django
import psycopg
import sqlalchemy
from django.conf import settings
from sqlalchemy import orm

import wirefence
import wirefence.psycopg
import wirefence.sqlalchemy

url = os.environ["DATABASE_URL"]
parts = psycopg.conninfo.conninfo_to_dict(url)
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
from django.db import models, transaction  # noqa: E402

import wirefence.django  # noqa: E402

INSERT = "INSERT INTO orders (item) VALUES (%s)"
session = psycopg.connect(url, autocommit=True)
engine = sqlalchemy.create_engine(url.replace("postgres://", "postgresql+psycopg2://"), pool_size=1)
table = sqlalchemy.Table(
    "orders", sqlalchemy.MetaData(), sqlalchemy.Column("id", sqlalchemy.BigInteger, primary_key=True), sqlalchemy.Column("item", sqlalchemy.Text)
)


class Ordered:
    pass


orm.registry().map_imperatively(Ordered, table)


class Order(models.Model):
    item = models.TextField()

    class Meta:
        app_label = "shop"
        db_table = "orders"


def psycopg_transaction(lease):
    with wirefence.psycopg.transaction(session, lease):
        session.execute(INSERT, ["100%"])


def psycopg_cursor(lease):
    wirefence.psycopg.cursor(session, lease).execute(INSERT, ["100%"])


def psycopg_cursor_text(lease):
    wirefence.psycopg.cursor(session, lease).execute("INSERT INTO orders (item) VALUES ('100%') -- said")


def psycopg_cursor_composed(lease):
    text = psycopg.sql.SQL("INSERT INTO {} (item) VALUES (%s)").format(psycopg.sql.Identifier("orders"))
    wirefence.psycopg.cursor(session, lease).execute(text, ["book"])


def psycopg_cursor_many(lease):
    wirefence.psycopg.cursor(session, lease).executemany(INSERT, [["book"]])


def psycopg_cursor_stream(lease):
    assert list(wirefence.psycopg.cursor(session, lease).stream(INSERT + " RETURNING 1", ["book"])) == [(1,)]


def psycopg_cursor_copy(lease):
    with wirefence.psycopg.cursor(session, lease).copy("COPY orders (item) FROM STDIN") as copying:
        copying.write_row(["book"])


def sqlalchemy_engine(lease):
    with wirefence.sqlalchemy.fenced(engine, lease), engine.begin() as connection:
        connection.execute(table.insert(), {"item": "100%"})


def sqlalchemy_connection(lease):
    with engine.connect() as connection, wirefence.sqlalchemy.fenced(connection, lease), connection.begin():
        connection.execute(sqlalchemy.text("INSERT INTO orders (item) VALUES ('100%') -- said"))


def sqlalchemy_many(lease):
    with wirefence.sqlalchemy.fenced(engine, lease), engine.begin() as connection:
        connection.execute(table.insert(), [{"item": "book"}])


def sqlalchemy_autocommit(lease):
    with wirefence.sqlalchemy.fenced(engine, lease):
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("INSERT INTO orders (item) VALUES ('book')")


def sqlalchemy_literal(lease):
    with wirefence.sqlalchemy.fenced(engine, lease):
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT", no_parameters=True) as connection:
            connection.exec_driver_sql("INSERT INTO orders (item) VALUES ('100%')")


def sqlalchemy_orm(lease):
    with wirefence.sqlalchemy.fenced(engine, lease), orm.Session(engine) as unit:
        ordered = Ordered()
        ordered.item = "book"
        unit.add(ordered)
        unit.commit()


def django_save(lease):
    with wirefence.django.fenced(lease):
        Order(item="100%").save()


def django_atomic(lease):
    with wirefence.django.fenced(lease, django.db.connection), transaction.atomic():
        Order.objects.bulk_create([Order(item="book")])


def django_cursor(lease):
    with wirefence.django.fenced(lease), django.db.connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders (item) VALUES ('100%')")


def django_many(lease):
    with wirefence.django.fenced(lease), django.db.connection.cursor() as cursor:
        cursor.executemany(INSERT, [["book"]])


hooks = [
    hook for name, hook in list(globals().items()) if name.startswith(("psycopg_", "sqlalchemy_", "django_"))
]


def swallowed(lease):
    """A transaction whose failed statement nobody heard of is not taken for committed."""
    try:
        with wirefence.psycopg.transaction(session, lease):
            try:
                session.execute("SELECT 1/0")
            except (psycopg.Error, wirefence.Refused):
                pass
    except wirefence.Refused:
        return  # the token is stale
    except wirefence.WirefenceError as error:
        assert "rolled back" in str(error), error
        return
    raise AssertionError("the transaction passes for committed")


def server_side_cursor(lease):
    """DECLARE hands no comment on, so it is refused under one."""
    try:
        with wirefence.django.fenced(lease), transaction.atomic():
            list(Order.objects.iterator())
    except (wirefence.CannotBeFenced, wirefence.StaleToken):
        return
    raise AssertionError("a cursor was declared under a comment")


def unfenced():
    """What runs behind the hooks is as it was before: nothing has stayed on a connection."""
    session.execute(INSERT, ["unfenced"])
    with engine.begin() as connection:
        connection.execute(table.insert(), {"item": "unfenced"})
    Order(item="unfenced").save()
    variable = "SELECT current_setting('wirefence.token', true)"
    assert not session.execute(variable).fetchone()[0]
    with engine.begin() as connection, django.db.connection.cursor() as cursor:
        assert not connection.exec_driver_sql(variable).scalar()
        cursor.execute(variable)
        assert not cursor.fetchone()[0]


client = wirefence.Client(os.environ["API"], token=os.environ["API_TOKEN"], holder="hooks", ttl=600)
with client.lease("hook ä%") as lease:
    while sys.stdin.readline():
        for hook in hooks:
            try:
                hook(lease)
                came = "written"
            except wirefence.Refused as error:
                came = type(error).__name__
                assert error.__cause__ is not None and "hook" in error.detail, (error, error.detail)
            print(json.dumps({"hook": hook.__name__, "came": came}), flush=True)
        swallowed(lease)
        server_side_cursor(lease)
        unfenced()
        print(json.dumps({"hook": "unfenced", "came": "written"}), flush=True)
