"""A fence, and the claims of rows."""

from __future__ import annotations

import re
import uuid
from typing import Dict, Iterable, Tuple, Union
from urllib.parse import quote

Column = Union[int, str, uuid.UUID]
Key = Union[Column, Tuple[Column, ...]]

MAX_ROWS, MAX_KEY, MAX_FENCE = 10_000, 1024, 1 << 20  # the last two in bytes


class Fence:
    """A fence, and the forms in which a statement, a transaction or a session carries it."""

    by_sql = False
    """The fence is that of a lease taken by SQL. There may be no proxy, which alone reads comments:
    hooks put it into transactions, too."""

    def __init__(self, fence: str) -> None:
        self.fence = fence

    def comment(self) -> str:
        """The fence as an SQL comment. A lease's stays the same when the lease has ended: a
        statement without a comment would not be refused."""
        return f"/*wirefence.token='{self.fence}'*/"

    def set_local(self) -> str:
        """The statement that makes the open transaction carry the fence."""
        return f"SET LOCAL wirefence.token = '{self.fence}'"

    def options(self) -> str:
        """The fence for libpq's connection parameter `options`."""
        return f"-c wirefence.token={self.fence}"

    def check(self) -> None:
        """Raise LeaseLost if the fence is that of a lease, and that has ended."""


class Claims(Fence):
    """The claims by which a worker has rows, such as jobs of a queue: docs/howto/queue.md.

    class_name  the rows' class, as declared
    claims      a key and a claim for each row, 1 to 10,000. A key of several columns is a
                tuple. A claim is an int, or its text as PostgreSQL writes it
    """

    def __init__(self, class_name: str, claims: Iterable[Tuple[Key, Union[int, str]]]) -> None:
        if not re.fullmatch("[a-z_][a-z0-9_]{0,62}", class_name):
            raise ValueError(f"{class_name!r} can't be a class of rows")
        rows: Dict[str, int] = {}
        for key, claim in claims:
            text, number = encode(key), read_claim(claim)
            if rows.setdefault(text, number) != number:
                raise ValueError(f"row {class_name}({text}) has two claims")
        super().__init__(",".join(f"{class_name}({key})={rows[key]}" for key in sorted(rows)))
        if not 1 <= len(rows) <= MAX_ROWS or len(self.fence) > MAX_FENCE:
            raise ValueError(f"{len(rows)} rows and {len(self.fence)} bytes make no fence")


def encode(key: Key) -> str:
    """Return a key as it stands in a fence."""
    columns = key if isinstance(key, tuple) else (key,)
    if not all(type(column) in (int, str, uuid.UUID) and str(column) for column in columns):
        raise ValueError(f"{key!r} can't be a key: its columns are an int, a str or a UUID, and not empty")
    text = ":".join(quote(str(column)).replace("~", "%7E") for column in columns)
    if not 1 <= len(text) <= MAX_KEY or "%00" in text:
        raise ValueError(f"{key!r} can't be a key")
    return text


def read_claim(claim: Union[int, str]) -> int:
    if type(claim) is not int and not (isinstance(claim, str) and re.fullmatch("0|-?[1-9][0-9]{0,18}", claim)):
        raise ValueError(f"{claim!r} can't be a claim")
    number = int(claim)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{claim!r} can't be a claim: it has more than 64 bits")
    return number
