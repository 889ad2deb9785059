# What Django's users do.
import io

import django
import psycopg2
import runs
from django.conf import settings
from django.db import Error, connection, connections, models, transaction

settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}}, USE_TZ=True)
django.setup()


class Row(models.Model):
    id = models.IntegerField(primary_key=True)
    v = models.TextField(null=True)

    class Meta:
        app_label, managed, db_table = "matrix", False, "t"


class Type(models.Model):
    oid = models.IntegerField(primary_key=True)

    class Meta:
        app_label, managed, db_table = "matrix", False, "pg_type"


def connect(run):
    """Points the default connection at the run's address."""
    params = run.libpq()
    config = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": run.database,
        "USER": params.pop("user"),
        "PASSWORD": params.pop("password"),
        "HOST": params.pop("host"),
        "PORT": params.pop("port"),
        "OPTIONS": params,
    }
    connections["default"].close()
    del connections["default"]
    connections.settings["default"] = config
    connections.ensure_defaults("default")
    connections.prepare_test_settings("default")


class Program:
    def __init__(self, run, report):
        self.run = run
        connect(run)
        self.sql(run.set)

        def comment(execute, sql, params, many, context):
            return execute(sql + run.comment, params, many, context)

        with connection.execute_wrapper(comment):
            self.scenario(report)
        connection.close()

    def sql(self, sql, *args):
        with connection.cursor() as c:
            c.execute(sql, args or None)
            return c.fetchall() if c.description else c.rowcount

    def atomic(self):
        with transaction.atomic():
            Row.objects.create(id=10, v="tx")
            try:
                with transaction.atomic():
                    Row.objects.all().delete()
                    raise RuntimeError
            except RuntimeError:
                pass
            with transaction.atomic():
                Row.objects.filter(id=10).update(v="Ü")
        return Row.objects.get(id=10).v

    def failing_savepoint(self):
        with transaction.atomic():
            Row.objects.create(id=12, v="kept")
            try:
                with transaction.atomic():
                    Row.objects.create(id=12, v="again")
            except Error as e:
                if e.__cause__.pgcode != "23505":
                    raise
            return Row.objects.filter(id=12).count()

    def on_commit(self):
        done = []
        with transaction.atomic():
            transaction.on_commit(lambda: done.append("committed"))
            Row.objects.create(id=13, v="c")
        return done

    def locked(self):
        with transaction.atomic():
            return [row.id for row in Row.objects.select_for_update().filter(id=1)]

    def copy_in(self):
        with connection.cursor() as c:
            c.cursor.copy_expert("COPY t FROM STDIN" + self.run.comment, io.StringIO("1000\ta\n1001\tb\n"))
            return c.rowcount

    def duplicate(self):
        Row.objects.bulk_create([Row(id=1, v="a"), Row(id=1, v="b")])

    def bulk(self):
        rows = Row.objects.bulk_create([Row(id=100 + i, v="bulk") for i in range(300)], batch_size=100)
        for row in rows:
            row.v = "updated"
        Row.objects.bulk_update(rows, ["v"], batch_size=100)
        return Row.objects.filter(v="updated").count()

    def read_only(self):
        with transaction.atomic():
            self.sql("SET TRANSACTION READ ONLY")
            return Row.objects.count() >= 0

    def serializable(self):
        with transaction.atomic():
            self.sql("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
            return Row.objects.create(id=50, v="s").id

    def iterate(self):
        """By a server-side cursor WITH HOLD, since there is no transaction."""
        return sum(1 for _ in Type.objects.all().iterator(chunk_size=50)) > 300

    def reset(self):
        self.sql("DISCARD ALL")
        self.sql(self.run.set)
        return Row.objects.create(id=60, v="behind the reset").id

    def scenario(self, report):
        sql, rows = self.sql, Row.objects
        report("R", "select", lambda: sql("SELECT 1 + %s, %s", 1, "ü"))
        report("W", "create", lambda: rows.create(id=1, v="a").id)
        report("W", "save", lambda: Row(id=2, v="b").save())
        report("W", "get or create", lambda: rows.get_or_create(id=3, defaults={"v": "c"})[1])
        report("W", "update or create", lambda: rows.update_or_create(id=3, defaults={"v": "d"})[1])
        report("W", "update", lambda: rows.filter(id=1).update(v=models.F("v")))
        report("W", "function", lambda: sql("SELECT write_one(%s)", 4))
        report("W", "several", lambda: sql("INSERT INTO t VALUES (5, 'd'); INSERT INTO t VALUES (6, 'e')"))
        report("W", "atomic", self.atomic)
        report("W", "failing savepoint", self.failing_savepoint)
        report("W", "on commit", self.on_commit)
        report("W", "for update", self.locked)
        report("W", "bulk", self.bulk)
        report("W", "copy in", self.copy_in)
        report("W", "serializable", self.serializable)
        report("R", "read only", self.read_only)
        report("R", "exists", lambda: rows.filter(id=-1).exists())
        report("D", "iterator", self.iterate)
        report("W", "large", lambda: rows.create(id=7, v="x" * 1_000_000).id)
        report("W", "call", lambda: sql("CALL commit_one(%s)", 90000))
        report("W", "vacuum", lambda: sql("VACUUM t"))
        report("W", "concurrent index", lambda: sql("CREATE INDEX CONCURRENTLY ON t(id)"))
        report("E", "syntax error", lambda: sql("SELECT 1 SELEC 2"))
        report("E", "position", lambda: sql("INSERT INTO t VALUES (9, nöpe)"))
        report("E", "duplicate", self.duplicate)
        report("R", "division", lambda: sql("SELECT 1 / 0"))
        report("W", "own notify", lambda: sql("NOTIFY news, 'own'"))
        report("R", "introspection", lambda: connection.introspection.table_names())
        report("W", "delete", lambda: rows.filter(id=1).delete())
        report("W", "reset", self.reset)
        report("R", "alive", lambda: sql("SELECT 'alive'"))


def error(e):
    while isinstance(e.__context__, (Error, psycopg2.Error)):
        # Django's errors wrap the driver's. When a cursor can't be declared it closes
        # it all the same, and that error hides the first.
        e = e.__context__
    return runs.libpq_error(e) if isinstance(e, psycopg2.Error) else None


runs.serve(Program, error)
