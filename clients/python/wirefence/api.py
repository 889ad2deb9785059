"""Requests of the HTTP API for leases."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import math
import socket
import ssl
import threading
from typing import Any, Callable, Dict, Optional, Union
from urllib.parse import quote, urlsplit

from .errors import ApiError, LeaseHeld, Unavailable

MAX_ANSWER = 1 << 20  # bytes

Token = Union[str, Callable[[], str], None]


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
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http or https URL")
        self._url, self._token = parts, token
        self._connection: Callable[..., http.client.HTTPConnection]
        self._connection = functools.partial(http.client.HTTPConnection, parts.hostname, parts.port)
        if parts.scheme == "https":
            tls = tls or ssl.create_default_context()
            self._connection = functools.partial(http.client.HTTPSConnection, parts.hostname, parts.port, context=tls)

    def call(
        self, resource: str, operation: str, body: Dict[str, Any], timeout: float, abort: Optional[Abort] = None
    ) -> Dict[str, Any]:
        """Send one request. Each step of it, such as connecting, may take the timeout."""
        headers = {"Content-Type": "application/json"}
        token = self._token() if callable(self._token) else self._token
        if token:
            headers["Authorization"] = f"Bearer {token}"
        path = f"{self._url.path.rstrip('/')}/v1/resources/{quote(resource, safe='')}/{operation}"
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
            raise Unavailable(f"no answer from {self._url.netloc}: {error or type(error).__name__}") from error
        try:
            answer = dict(json.loads(text))
        except (TypeError, ValueError) as error:
            raise Unavailable(f"the answer, {response.status}, is not of the API", status=response.status) from error
        if response.status == 200:
            if operation != "release":
                want_term(answer)
            return answer
        raise problem(response.status, answer, response.getheader("Retry-After", ""))


def want_term(answer: Dict[str, Any]) -> None:
    """Raise where an answer doesn't say how long a lease lasts, as when something else than the
    API has answered."""
    for field in ("ttl_seconds", "expires_in_seconds", "renew_after_seconds"):
        value = answer.get(field)
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise Unavailable(f"the answer is not of the API: it has no {field}", status=200)


def problem(status: int, answer: Dict[str, Any], retry_after: str) -> ApiError:
    """Return the error that an answer tells of."""
    error = ApiError(str(answer.get("detail", f"status {status}")), status=status, problem=answer)
    if error.type == "lease-held":
        return LeaseHeld(error.detail, status=status, problem=answer)
    if status == 429 or status >= 500 and error.type != "not-configured":
        unavailable = Unavailable(error.detail, status=status, problem=answer)
        unavailable.retry_after = float(retry_after) if retry_after.isdigit() else 0.0
        return unavailable
    return error
