"""Where to connect to: `mq://[key:secret@]host[:port][,host:port...]`."""

from __future__ import annotations

import os
import re
from typing import Final
from urllib.parse import unquote

from aerobee.client.errors import Misuse
from aerobee.client.remoting import Credentials

SCHEME: Final = "mq://"
DEFAULT_PORT: Final = 9876
# An error repeats no more of an address than this, or a host: the rest may hold the secret.
_OTHER_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def parse_url(url: str | None) -> tuple[list[str], Credentials | None]:
    """The name servers and the credentials; None reads AEROBEE_URL or takes this machine."""
    text = url or os.environ.get("AEROBEE_URL") or f"{SCHEME}127.0.0.1:{DEFAULT_PORT}"
    rest = text.removeprefix(SCHEME).rstrip("/")
    if other := _OTHER_SCHEME.match(rest):
        raise Misuse(f"addresses begin with {SCHEME}, as in mq://localhost:9876, not {other[0]}")
    login, at, hosts = rest.rpartition("@")
    credentials = None
    if at:
        key, colon, secret = login.partition(":")
        if not (key and colon and secret):
            raise Misuse("credentials are given as mq://accessKey:secretKey@host:port")
        credentials = Credentials(unquote(key), unquote(secret))
    servers = [_address(host.strip()) for host in hosts.replace(";", ",").split(",")]
    return servers, credentials


def _address(host: str) -> str:
    name, colon, port = host.rpartition(":")
    if not colon or (host.startswith("[") and host.endswith("]")):
        name, port = host, str(DEFAULT_PORT)
    if not name or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise Misuse(f"{name!r} has no valid port: expected host:port, as in localhost:9876")
    return f"{name}:{port}"
