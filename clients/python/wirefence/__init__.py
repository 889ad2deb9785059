"""Leases with fencing tokens of a Wirefence proxy.

    client = wirefence.Client("http://127.0.0.1:9433")
    with client.lease("orders", wait=60) as lease:
        connection.execute("INSERT INTO orders (item) VALUES ('book') " + lease.comment())

The modules wirefence.psycopg, wirefence.sqlalchemy and wirefence.django put the fence
into what a driver sends.
"""

from .client import Client, Leasing
from .errors import (
    ApiError,
    CannotBeFenced,
    LeaseHeld,
    LeaseLost,
    LeaseNotHeld,
    MalformedToken,
    Refused,
    ResourceUnknown,
    StaleToken,
    TokenRequired,
    TokenReused,
    Unavailable,
    UnknownToken,
    WirefenceError,
    refusal,
    refusals,
)
from .lease import Lease

__version__ = "0.1.0"

__all__ = [
    "ApiError",
    "CannotBeFenced",
    "Client",
    "Lease",
    "LeaseHeld",
    "LeaseLost",
    "LeaseNotHeld",
    "Leasing",
    "MalformedToken",
    "Refused",
    "ResourceUnknown",
    "StaleToken",
    "TokenRequired",
    "TokenReused",
    "Unavailable",
    "UnknownToken",
    "WirefenceError",
    "refusal",
    "refusals",
]
