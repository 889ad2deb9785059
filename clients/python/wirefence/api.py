"""Requests of the HTTP API for leases."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import math
import re
import socket
import ssl
import threading
from typing import Any, Callable, Dict, Optional, Type, Union
from urllib.parse import quote, urlsplit

from .errors import ApiError, LeaseHeld, Unavailable

MAX_ANSWER = 1 << 20  # bytes

Token = Union[str, Callable[[], str], None]

# Tests of what an answer must have, or something else than the API has answered: a deadline
# that is no number would never pass, and a fence is put into SQL.
Tests = Dict[str, Callable[[Any], Any]]
FENCE = re.compile("[A-Za-z0-9_.:/%-]+=[1-9][0-9]*(@[a-z][a-z0-9_.-]*)?").fullmatch
TERM: Tests = {"ttl_seconds": math.isfinite, "expires_in_seconds": math.isfinite, "renew_after_seconds": math.isfinite}
GRANT: Tests = {**TERM, "resource": str, "grant_id": str, "token_text": int, "fence": FENCE}
FIELDS = {"acquire": GRANT, "renew": TERM, "release": {"was_held": lambda held: held in (True, False)}}


class Abort(threading.Event):
    """Ends a request from another thread, and refuses all later ones."""

    sock: Optional[socket.socket] = None

    def set(self) -> None:
        super().set()  # before it reads sock: a request writes sock before it looks at this
        if self.sock:
            with contextlib.suppress(OSError):  # closed already
                self.sock.shutdown(socket.SHUT_RDWR)


class Api:
    """The API of one proxy. It is safe for concurrent use."""

    def __init__(self, url: str, token: Token, tls: Optional[ssl.SSLContext]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ValueError("the url of the API must be http or https, with a host and no user")
        self._host, self._path, self._token = parts.netloc, parts.path.rstrip("/"), token
        secure = {"context": tls or ssl.create_default_context()} if parts.scheme == "https" else {}
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._connection = functools.partial(kind, parts.hostname, parts.port, **secure)

    def call(
        self, resource: str, operation: str, body: Dict[str, Any], timeout: float, abort: Optional[Abort] = None
    ) -> Dict[str, Any]:
        """Send one request. Each step of it, such as connecting, may take the timeout."""
        headers = {"Content-Type": "application/json"}
        if token := self._token() if callable(self._token) else self._token:
            headers["Authorization"] = f"Bearer {token}"
        path = f"{self._path}/v1/resources/{quote(resource, safe='')}/{operation}"
        try:
            with contextlib.closing(self._connection(timeout=timeout)) as connection:
                connection.connect()
                if abort:
                    abort.sock = connection.sock
                    if abort.is_set():
                        raise OSError("aborted")
                connection.request("POST", path, json.dumps(body).encode(), headers)
                response = connection.getresponse()
                text = response.read(MAX_ANSWER)
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"no answer from {self._host}: {error or type(error).__name__}") from error
        try:
            answer = dict(json.loads(text))
            if response.status == 200:
                for field, test in FIELDS[operation].items():
                    if not test(answer[field]):
                        raise ValueError(field)
                return answer
        except (TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
            told = f"the answer, {response.status}, is not of the API: {error!r}"
            raise Unavailable(told, status=response.status) from error
        raise problem(response.status, answer, response.getheader("Retry-After", ""))


def problem(status: int, answer: Dict[str, Any], retry_after: str) -> ApiError:
    """Return the error that an answer tells of."""
    name = str(answer.get("type"))
    kind: Type[ApiError] = ApiError
    if name.endswith(":lease-held"):
        kind = LeaseHeld
    elif status == 429 or status >= 500 and not name.endswith(":not-configured"):
        kind = Unavailable
    error = kind(str(answer.get("detail", f"status {status}")), status=status, problem=answer)
    if isinstance(error, Unavailable) and retry_after.isdecimal():
        error.retry_after = float(retry_after)
    return error
