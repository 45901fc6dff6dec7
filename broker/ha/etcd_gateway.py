"""Requests to etcd's JSON gateway with the standard HTTP client, and hints for its errors."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Final
from urllib.parse import urlsplit

from aerobee.broker.ha.arbiter import ArbiterError

# Hints for the operator by fragments of etcd's or TLS's error text; the first match counts.
_REMEDIES: Final = (
    ("certificate verify failed", "see etcdCaFile, and which hosts etcd's certificate names"),
    ("invalid user id or password", "see etcdUser and etcdPassword"),
    ("user name is empty", "etcd wants a user: see etcdUser and etcdPassword"),
    ("permission denied", "etcd wants a user that may use keys below etcdPrefix: see etcdUser"),
    ("commonname of client", "etcd with users takes certificates without a CN: see etcdCertFile"),
)
_NO_TLS: Final = "does etcd speak TLS there? then write https:// in etcdEndpoints"
_ODD_TLS: Final = (
    "does etcd speak TLS there, and take our certificate? see etcdEndpoints, etcdCertFile and "
    "etcdKeyFile"
)


def _with_remedy(endpoint: str, error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    remedy = next((words for sign, words in _REMEDIES if sign in text.lower()), "")
    if not remedy and isinstance(error, ssl.SSLError):
        remedy = _ODD_TLS
    # RemoteDisconnected is one, too: which of the two is raised depends on timing.
    if not remedy and isinstance(error, ConnectionResetError):
        remedy = _NO_TLS if endpoint.startswith("http:") else _ODD_TLS
    return f"{endpoint}: {text}" + (f"; {remedy}" if remedy else "")


class EtcdRefused(Exception):
    """etcd has refused."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"etcd answered {status}: {message}")


class NotConnected(ArbiterError):
    """Nothing was sent: the next endpoint may be asked."""


class Gateway:
    """Blocking requests to one of the endpoints, the next one when that fails. For one thread."""

    def __init__(
        self,
        endpoints: Sequence[str],
        timeout_s: float,
        context: ssl.SSLContext | None = None,
        user: tuple[str, str] | None = None,
    ) -> None:
        self._endpoints = list(endpoints)
        self._timeout_s = timeout_s
        self._context = context
        self._user = user
        self._token = ""
        self._connection: HTTPConnection | None = None
        self._moved_on = False  # the last request has failed, another endpoint may answer it

    @property
    def endpoint(self) -> str:
        return self._endpoints[0]

    @property
    def local(self) -> tuple[str, int]:
        """Our end of the connection."""
        sock = self._connection.sock if self._connection is not None else None
        return sock.getsockname()[:2] if sock is not None else ("127.0.0.1", 0)

    def ask(
        self, path: str, content: dict[str, Any], *, repeatable: bool = False
    ) -> dict[str, Any]:
        """ArbiterError: the outcome is unknown, and the next request goes to the next endpoint. A
        `repeatable` one, and one that was never sent, goes there at once: a lease must not expire
        because the machine that we asked is gone."""
        for others in reversed(range(len(self._endpoints))):
            try:
                return self._ask(path, content)
            except ArbiterError as error:
                is_last = not others or not self._moved_on
                if is_last or not (repeatable or isinstance(error, NotConnected)):
                    raise
        raise AssertionError

    def _ask(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        self._moved_on = False
        response = self.begin(path, content)
        try:
            data = response.read()
        except (OSError, HTTPException) as error:
            raise self._failed(error) from None
        return self._content(response.status, data)

    def begin(self, path: str, content: dict[str, Any]) -> HTTPResponse:
        """The response, with only its headers read."""
        if self._user is not None and not self._token:
            self._log_in()
        try:
            return self._send(path, content)
        except (OSError, HTTPException) as error:
            raise self._failed(error) from None

    def _send(self, path: str, content: dict[str, Any]) -> HTTPResponse:
        if self._connection is None:
            self._connection = self._connect()
            self._reach(self._connection)
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = self._token
        self._connection.request("POST", path, json.dumps(content), headers)
        return self._connection.getresponse()

    def _connect(self) -> HTTPConnection:
        url = urlsplit(self.endpoint)
        host, port = url.hostname or "", url.port or 2379
        if url.scheme == "https":
            return HTTPSConnection(host, port, timeout=self._timeout_s, context=self._context)
        return HTTPConnection(host, port, timeout=self._timeout_s)

    def _reach(self, connection: HTTPConnection) -> None:
        """Connect. A machine that is gone does not refuse, so without TLS wait only half of the
        time: an attempt takes a round trip, and the kernel repeats it only a second later."""
        if not isinstance(connection, HTTPSConnection):
            connection.timeout = self._timeout_s / 2
        try:
            connection.connect()
        except OSError as error:
            raise self._failed(error, NotConnected) from None
        self.set_read_timeout(self._timeout_s)

    def _failed(self, error: Exception, kind: type[ArbiterError] = ArbiterError) -> ArbiterError:
        failed = self.endpoint
        self.close()
        self._endpoints.append(self._endpoints.pop(0))
        self._moved_on = True
        return kind(_with_remedy(failed, error))

    def _content(self, status: int, data: bytes) -> dict[str, Any]:
        try:
            found = json.loads(data)
        except ValueError:
            found = {"error": data[:200].decode("latin-1")}
        if status == 200 and isinstance(found, dict):
            return found
        # Tokens expire after minutes, or when a user is changed: the next request logs in again.
        self._token = ""
        text = found.get("error", found) if isinstance(found, dict) else found
        refused = EtcdRefused(status, str(text)[:200])
        if status >= 500:  # no leader, or a timeout: try another endpoint
            raise self._failed(refused)
        raise ArbiterError(_with_remedy(self.endpoint, refused))

    def _log_in(self) -> None:
        assert self._user is not None
        name, password = self._user
        try:
            response = self._send("/v3/auth/authenticate", {"name": name, "password": password})
            data = response.read()
        except (OSError, HTTPException) as error:
            raise self._failed(error) from None
        self._token = str(self._content(response.status, data).get("token", ""))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def forget_token(self) -> None:
        self._token = ""

    def set_read_timeout(self, seconds: float) -> None:
        """The timeout of later reads on this connection."""
        if self._connection is not None and self._connection.sock is not None:
            self._connection.sock.settimeout(seconds)

    def abort(self) -> None:
        """Called from another thread: make pending reads end."""
        connection = self._connection
        if connection is not None and connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
