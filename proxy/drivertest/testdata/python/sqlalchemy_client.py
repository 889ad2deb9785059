# What SQLAlchemy's users do, by Core and by the ORM, over psycopg2.
import io

import psycopg2
import runs
from sqlalchemy import Column, Integer, Text, create_engine, event, func, insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, declarative_base

Base = declarative_base()


class Row(Base):
    __tablename__ = "t"
    id = Column(Integer, primary_key=True)
    v = Column(Text)


def engine_of(run):
    """An engine whose pool resets its connections by DISCARD ALL."""
    # What the dialect asks the server once, for its version and the like, would be
    # refused in a stale session: the first one carries nothing.
    params = [run.libpq(), run.unfenced()]
    engine = create_engine(
        "postgresql+psycopg2://", creator=lambda: psycopg2.connect(dbname=run.database, **(params.pop() if params[1:] else params[0])), pool_size=2, future=True
    )
    engine.connect().close()
    engine.dispose()

    @event.listens_for(engine, "reset")
    def reset(connection, record):
        connection.rollback()
        connection.autocommit = True
        connection.cursor().execute("DISCARD ALL")
        connection.autocommit = False

    @event.listens_for(engine, "checkout")
    def checkout(connection, record, proxy):
        # Outside of a transaction: a stale session's COMMIT is refused too.
        connection.autocommit = True
        connection.cursor().execute(run.set)
        connection.autocommit = False

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def comment(connection, cursor, statement, parameters, context, executemany):
        return statement + run.comment, parameters

    return engine


class Program:
    def __init__(self, run, report):
        self.run = run
        self.engine = engine_of(run)
        self.scenario(report)
        self.engine.dispose()

    def core(self, statement, *args):
        with self.engine.begin() as conn:
            result = conn.execute(statement, *args)
            return [tuple(row) for row in result] if result.returns_rows else result.rowcount

    def transaction(self):
        with self.engine.begin() as conn:
            conn.execute(insert(Row).values(id=10, v="tx"))
            nested = conn.begin_nested()
            conn.execute(text("DELETE FROM t"))
            nested.rollback()
            with conn.begin_nested():
                return conn.execute(update(Row).where(Row.id == 10).values(v="Ü").returning(Row.v)).scalar()

    def rolled_back(self):
        with self.engine.connect() as conn:
            conn.execute(insert(Row).values(id=11, v="never"))
            conn.rollback()
        return "done"

    def failing_savepoint(self):
        with self.engine.begin() as conn:
            conn.execute(insert(Row).values(id=12, v="kept"))
            try:
                with conn.begin_nested():
                    conn.execute(insert(Row).values(id=12, v="again"))
            except DBAPIError as e:
                if e.orig.pgcode != "23505":
                    raise
            return conn.execute(select(func.count()).where(Row.id == 12)).scalar()

    def unit_of_work(self):
        with Session(self.engine) as session:
            session.add_all(Row(id=20 + i, v=f"orm {i}") for i in range(5))
            session.flush()
            row = session.get(Row, 22)
            row.v = "changed"
            with session.begin_nested():
                session.delete(session.get(Row, 23))
            session.commit()
            return session.execute(select(Row.v).where(Row.id.between(20, 29)).order_by(Row.id)).scalars().all()

    def locked(self):
        with Session(self.engine) as session, session.begin():
            return session.execute(select(Row.id).where(Row.id == 1).with_for_update()).scalars().all()

    def many(self):
        self.core(insert(Row), [{"id": 100 + i, "v": "many"} for i in range(500)])
        return self.core(text("UPDATE t SET v = :v WHERE id = :id"), [{"id": 100 + i, "v": "more"} for i in range(20)]) >= -1

    def upserted(self):
        statement = upsert(Row).values(id=1, v="b")
        return self.core(statement.on_conflict_do_update(index_elements=[Row.id], set_={"v": "c"}).returning(Row.v))

    def streamed(self):
        with self.engine.connect().execution_options(stream_results=True, yield_per=50) as conn:
            return sum(row[0] for row in conn.execute(select(func.generate_series(1, 1000))))

    def level(self, level, statement):
        with self.engine.connect().execution_options(isolation_level=level) as conn:
            result = conn.execute(statement).rowcount
            conn.commit()
            return result

    def copy_in(self):
        raw = self.engine.raw_connection()
        try:
            cursor = raw.cursor()
            rows = "".join(f"{i}\trow {i}\n" for i in range(1000, 2000))
            cursor.copy_expert("COPY t FROM STDIN" + self.run.comment, io.StringIO(rows))
            raw.commit()
            return cursor.rowcount
        finally:
            raw.close()

    def scenario(self, report):
        core = self.core
        report("R", "select", lambda: core(text("SELECT 1 + :n, :s"), {"n": 1, "s": "ü"}))
        report("W", "insert", lambda: core(insert(Row).values(id=1, v="a")))
        report("W", "returning", lambda: core(insert(Row).values(id=2, v="b").returning(Row.id, Row.v)))
        report("W", "function", lambda: core(select(func.write_one(3))))
        report("W", "several", lambda: core(text("INSERT INTO t VALUES (4, 'c'); INSERT INTO t VALUES (5, 'd')")))
        report("W", "upsert", self.upserted)
        report("W", "transaction", self.transaction)
        report("W", "rolled back", self.rolled_back)
        report("W", "failing savepoint", self.failing_savepoint)
        report("W", "unit of work", self.unit_of_work)
        report("W", "for update", self.locked)
        report("W", "many", self.many)
        report("D", "streamed", self.streamed)
        report("W", "copy in", self.copy_in)
        report("W", "serializable", lambda: self.level("SERIALIZABLE", insert(Row).values(id=50, v="s")))
        report("W", "repeatable read", lambda: self.level("REPEATABLE READ", insert(Row).values(id=51, v="s")))
        report("W", "autocommit", lambda: self.level("AUTOCOMMIT", insert(Row).values(id=52, v="s")))
        report("W", "large", lambda: core(insert(Row).values(id=6, v="x" * 1_000_000).returning(func.length(Row.v))))
        report("W", "call", lambda: self.level("AUTOCOMMIT", text("CALL commit_one(90000)")))
        report("W", "vacuum", lambda: self.level("AUTOCOMMIT", text("VACUUM t")))
        report("W", "concurrent index", lambda: self.level("AUTOCOMMIT", text("CREATE INDEX CONCURRENTLY ON t(id)")))
        report("E", "syntax error", lambda: core(text("SELECT 1 SELEC 2")))
        report("E", "position", lambda: core(text("INSERT INTO t VALUES (9, nöpe)")))
        report("E", "duplicate", lambda: core(insert(Row), [{"id": 1, "v": "a"}, {"id": 1, "v": "b"}]))
        report("R", "division", lambda: core(text("SELECT 1 / 0")))
        report("W", "own notify", lambda: core(text("NOTIFY news, 'own'")))
        report("R", "alive", lambda: core(select(text("'alive'"))))


def error(e):
    if isinstance(e, DBAPIError):
        e = e.orig
    return runs.libpq_error(e) if isinstance(e, psycopg2.Error) else None


runs.serve(Program, error)
