"""Leases with fencing tokens of a Wirefence proxy, and claims of rows: docs/reference/clients.md.

The modules wirefence.psycopg, wirefence.asyncpg, wirefence.sqlalchemy, wirefence.django and wirefence.langgraph
put the fence into what a driver sends.
"""

from .client import Client as Client, Leasing as Leasing
from .errors import ApiError as ApiError, LeaseHeld as LeaseHeld, Unavailable as Unavailable
from .errors import CannotBeFenced as CannotBeFenced, LeaseNotHeld as LeaseNotHeld, MalformedToken as MalformedToken
from .errors import LeaseLost as LeaseLost, WirefenceError as WirefenceError
from .errors import Refused as Refused, refusal as refusal, refusals as refusals
from .errors import ResourceUnknown as ResourceUnknown, StaleToken as StaleToken, TokenRequired as TokenRequired
from .errors import TokenReused as TokenReused, UnknownToken as UnknownToken
from .fence import Claims as Claims, Fence as Fence
from .lease import Lease as Lease

__version__ = "0.1.0"
