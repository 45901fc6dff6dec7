"""Where to connect to: `mq://[key:secret@]host[:port][,host:port...]`."""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import unquote

from aerobee.client.errors import Misuse
from aerobee.client.remoting import Credentials

SCHEME: Final = "mq://"
DEFAULT_PORT: Final = 9876


def parse_url(url: str | None) -> tuple[list[str], Credentials | None]:
    """The name servers and the credentials; None reads AEROBEE_URL or takes this machine."""
    text = url or os.environ.get("AEROBEE_URL") or f"{SCHEME}127.0.0.1:{DEFAULT_PORT}"
    rest = text.removeprefix(SCHEME).rstrip("/")
    if "://" in rest:
        raise Misuse(f"{text!r}: addresses begin with {SCHEME}, as in mq://localhost:9876")
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
        raise Misuse(f"{host!r} is no address: expected host:port, as in localhost:9876")
    return f"{name}:{port}"
