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
import time
from typing import Any, Callable, Dict, Iterator, Optional, Type, Union
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

    cut: Callable[[], object] = staticmethod(lambda: None)
    """Ends the request that is under way, but refuses no later one."""

    def set(self) -> None:
        super().set()  # before it reads cut: a request writes cut before it looks at this
        self.cut()


def shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed already
        sock.shutdown(socket.SHUT_RDWR)


class Api:
    """The API of one proxy. It is safe for concurrent use."""

    by_sql = False

    def __init__(self, url: str, token: Token, tls: Optional[ssl.SSLContext]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ValueError("the url must be of an API, by http or https, with a host and no user, or begin with postgresql://")
        self._host, self._path, self._token = parts.netloc, parts.path.rstrip("/"), token
        self._tls = tls or ssl.create_default_context() if parts.scheme == "https" else None
        self._connection: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
        if self._tls:
            self._connection = functools.partial(http.client.HTTPSConnection, context=self._tls)
        self._address = parts.hostname, parts.port

    def call(
        self, resource: str, operation: str, body: Dict[str, Any], timeout: float, abort: Optional[Abort] = None
    ) -> Dict[str, Any]:
        """Send one request. From the connection on it may take the timeout in all; before, each
        address of the host may take that long."""
        headers = {"Content-Type": "application/json"}
        if token := self._token() if callable(self._token) else self._token:
            headers["Authorization"] = f"Bearer {token}"
        path = f"{self._path}/v1/resources/{quote(resource, safe='')}/{operation}"
        abort = abort or Abort()
        try:
            with contextlib.closing(self._connection(*self._address, timeout=timeout)) as connection:
                http.client.HTTPConnection.connect(connection)  # without TLS yet
                with self._within(timeout, connection, abort):
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

    def close(self) -> None:
        """Do nothing: no connection outlasts its request."""

    @contextlib.contextmanager
    def _within(self, timeout: float, connection: http.client.HTTPConnection, abort: Abort) -> Iterator[None]:
        """Use a connection until the abort, or for so many seconds: a socket's own timeout is
        for each step, and a peer can answer byte by byte. TLS begins here."""
        if self._tls:
            connection.sock = self._tls.wrap_socket(
                connection.sock, server_hostname=connection.host, do_handshake_on_connect=False
            )
        abort.cut = cut = functools.partial(shut, connection.sock)
        if abort.is_set():
            raise OSError("aborted")
        until = time.monotonic() + timeout
        late = threading.Timer(timeout, cut)
        late.daemon = True
        late.start()
        try:
            if isinstance(connection.sock, ssl.SSLSocket):
                connection.sock.do_handshake()
            yield
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() < until:
                raise
            raise TimeoutError(f"none within {timeout:.3f} s") from error
        finally:
            late.cancel()


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
