"""Requests of the HTTP API for leases."""

from __future__ import annotations

import http.client
import json
import math
import socket
import ssl
import threading
from typing import Any, Callable, Dict, Optional, Union
from urllib.parse import quote, urlsplit

from .errors import ApiError, LeaseHeld, Unavailable

PROBLEM = "urn:wirefence:problem:"
MAX_ANSWER = 1 << 20  # bytes

Token = Union[str, Callable[[], str], None]


class Abort:
    """Ends a request from another thread. Once it is set, every request that it is given to
    fails."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: Optional[http.client.HTTPConnection] = None
        self.wanted = threading.Event()

    def set(self) -> None:
        with self._lock:
            self.wanted.set()
            sock = self._connection.sock if self._connection else None
            if sock is not None:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # it is closed already

    def watch(self, connection: Optional[http.client.HTTPConnection]) -> None:
        with self._lock:
            self._connection = connection
            if self.wanted.is_set() and connection is not None:
                raise Unavailable("the request was aborted")


class Api:
    """The API of one proxy. It is safe for concurrent use."""

    def __init__(self, url: str, token: Token, tls: Optional[ssl.SSLContext]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http or https URL")
        if parts.username or parts.query or parts.fragment:
            raise ValueError("the URL of the API has a scheme, a host, a port and a path only")
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/")
        self._token = token
        self._tls = None
        if parts.scheme == "https":
            self._tls = tls or ssl.create_default_context()

    def call(
        self, resource: str, operation: str, body: Dict[str, Any], timeout: float, abort: Optional[Abort] = None
    ) -> Dict[str, Any]:
        """Send one request. Each step of it, such as connecting, may take the timeout."""
        connection = self._connect(timeout)
        try:
            connection.connect()
            if abort:
                abort.watch(connection)
            path = f"{self._path}/v1/resources/{quote(resource, safe='')}/{operation}"
            connection.request("POST", path, json.dumps(body).encode(), self._headers())
            response = connection.getresponse()
            text = response.read(MAX_ANSWER)
        except (OSError, http.client.HTTPException) as error:
            if abort and abort.wanted.is_set():
                raise Unavailable("the request was aborted") from error
            raise Unavailable(f"no answer from {self._host}: {error or type(error).__name__}") from error
        finally:
            if abort:
                abort.watch(None)
            connection.close()
        return self._read(response, text)

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        if self._tls:
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def _headers(self) -> Dict[str, str]:
        headers = {"Content-Type": "application/json"}
        token = self._token() if callable(self._token) else self._token
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _read(self, response: http.client.HTTPResponse, text: bytes) -> Dict[str, Any]:
        try:
            answer = json.loads(text)
            if not isinstance(answer, dict):
                raise ValueError("it is not an object")
        except ValueError as error:
            raise Unavailable(f"the answer, {response.status}, is not of the API: {error}", status=response.status) from error
        if response.status == 200:
            return answer
        raise problem(response.status, answer, response.getheader("Retry-After"))


def want_term(answer: Dict[str, Any]) -> None:
    """Raise where an answer doesn't say how long a lease lasts, as when something else than the
    API has answered."""
    for field in ("ttl_seconds", "expires_in_seconds", "renew_after_seconds"):
        value = answer.get(field)
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise Unavailable(f"the answer is not of the API: it has no {field}", status=200)


class Lost(ApiError):
    """A renewal's answer that the lease is lost."""

    def __init__(self, detail: str, cause: str) -> None:
        super().__init__(detail, status=409, type="lease-lost")
        self.cause = cause


def problem(status: int, answer: Dict[str, Any], retry_after: Optional[str]) -> ApiError:
    """Return the error that an answer tells of."""
    kind = str(answer.get("type", ""))
    kind = kind[len(PROBLEM) :] if kind.startswith(PROBLEM) else kind
    detail = str(answer.get("detail", f"status {status}"))
    if kind == "lease-held":
        return LeaseHeld(detail, held_by=str(answer.get("held_by", "")), held_for=answer.get("held_for_seconds"))
    if kind == "lease-lost":
        return Lost(detail, str(answer.get("cause", "lost")))
    if status == 429 or status >= 500 and kind != "not-configured":
        wait = float(retry_after) if retry_after and retry_after.isdigit() else 0.0
        return Unavailable(detail, status=status, type=kind, retry_after=wait)
    return ApiError(detail, status=status, type=kind)
