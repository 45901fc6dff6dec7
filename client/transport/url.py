"""Where to connect to: `mq://[key:secret@]host[:port][,host:port...]`, `mqs://...` for TLS."""

from __future__ import annotations

import os
import re
from typing import Final
from urllib.parse import parse_qsl, unquote

from aerobee.client.errors import Misuse
from aerobee.client.transport.tls import CA, FULL, NONE, TlsOptions
from aerobee.protocol.wire.signing import Credentials

SCHEME: Final = "mq://"
TLS_SCHEME: Final = "mqs://"
DEFAULT_PORT: Final = 9876
# An error repeats no more of an address than this, or a host: the rest may hold the secret.
_OTHER_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def parse_url(url: str | None) -> tuple[list[str], Credentials | None]:
    """The name servers and the credentials; None reads AEROBEE_URL or takes this machine."""
    text = given_url(url)
    if text.startswith(TLS_SCHEME):
        text = text.removeprefix(TLS_SCHEME).partition("?")[0]
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


def parse_tls(url: str | None) -> TlsOptions | None:
    """How to speak TLS with them: `mqs://host?ca=FILE&cert=FILE&key=FILE&verify=full|ca|none`."""
    text = given_url(url)
    if not text.startswith(TLS_SCHEME):
        return None
    options = dict(parse_qsl(text.partition("?")[2], keep_blank_values=True))
    if unknown := options.keys() - {"ca", "cert", "key", "verify"}:
        raise Misuse(f"{min(unknown)!r} is no option of mqs://; there are ca, cert, key, verify")
    if options.get("verify", FULL) not in (FULL, CA, NONE):
        raise Misuse(f"verify is {FULL}, {CA} or {NONE}")
    return TlsOptions(**options)


def given_url(url: str | None) -> str:
    """The address itself, or AEROBEE_URL, or this machine."""
    return url or os.environ.get("AEROBEE_URL") or f"{SCHEME}127.0.0.1:{DEFAULT_PORT}"


def _address(host: str) -> str:
    name, colon, port = host.rpartition(":")
    if not colon or (host.startswith("[") and host.endswith("]")):
        name, port = host, str(DEFAULT_PORT)
    if not name or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise Misuse(f"{name!r} has no valid port: expected host:port, as in localhost:9876")
    return f"{name}:{port}"
