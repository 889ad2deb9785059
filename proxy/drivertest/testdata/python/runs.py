# How a program in Python is run: a line of input starts a run, its lines and a
# dot end it. way_test.go says what the lines mean.
import os
import sys
import threading
from dataclasses import dataclass


@dataclass
class Run:
    port: str
    direct: str  # the server's own port
    database: str
    security: str
    options: str  # of the startup packet
    set: str  # the first statement of a session
    comment: str  # for the end of each text

    def libpq(self, port=None, options=None):
        """What libpq needs to connect."""
        params = dict(
            host=os.environ["PGHOST"],
            port=port or self.port,
            user=os.environ["PGUSER"],
            password=os.environ["PGPASSWORD"],
            options=self.options if options is None else options,
        )
        if self.security == "plain":
            return dict(params, sslmode="disable")
        params.update(sslmode="verify-full", sslrootcert=os.environ["ROOT_CERT"])
        if self.security == "binding":
            params.update(channel_binding="require")
        return params

    def unfenced(self):
        return self.libpq(port=self.direct, options="")


def serve(scenario, error):
    """Runs the scenario for each line. error turns an exception into a text, or
    into None where it is none that the driver raises."""

    def report(kind, name, act):
        try:
            result = act()
        except Exception as e:
            text = error(e)
            if text is None:
                raise
            result = "error " + text
        print(kind, name + ":", result, flush=True)

    for line in sys.stdin:
        scenario(Run(*line.rstrip("\n").split("\t")), report)
        print(".", flush=True)


def libpq_error(e):
    """The SQLSTATE and position of psycopg's errors."""
    position = e.diag.statement_position if e.diag else None
    # libpq's large objects report errors by text alone.
    code = getattr(e, "sqlstate", None) or getattr(e, "pgcode", None)
    code = code or ("WF001" if "stale fencing token" in str(e) else str(e).replace("\n", " "))
    return code + (f" at {position}" if position else "")



def cancelled(sleep, asleep, cancel):
    """Runs sleep, and cancels it once it is asleep. A stale one is refused at once."""
    ended = threading.Event()

    def when_asleep():
        while not ended.is_set():
            if asleep():
                return cancel()

    canceller = threading.Thread(target=when_asleep)
    canceller.start()
    try:
        return sleep()
    finally:
        ended.set()
        canceller.join()


SLEEPS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
