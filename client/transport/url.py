"""Where to connect to: `mq://[key:secret@]host[:port][,host:port...]`, `mqs://...` for TLS."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote

from aerobee.client.errors import Misuse
from aerobee.client.transport.tls import CA, FULL, NONE, TlsOptions
from aerobee.protocol.wire.signing import Credentials

SCHEME: Final = "mq://"
TLS_SCHEME: Final = "mqs://"
DEFAULT_PORT: Final = 9876
CREDENTIALS_FILE: Final = "AEROBEE_CREDENTIALS_FILE"
# Errors quote at most this much of an address, or a host: the rest may hold the secret.
_OTHER_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def parse_url(url: str | None) -> tuple[list[str], Credentials | None]:
    """The name servers and the credentials; None reads AEROBEE_URL or takes this machine. What an
    address does not say about credentials is in the file of AEROBEE_CREDENTIALS_FILE, if any."""
    text = given_url(url)
    if text.startswith(TLS_SCHEME):
        text = text.removeprefix(TLS_SCHEME).partition("?")[0]
    rest = text.removeprefix(SCHEME).rstrip("/")
    if other := _OTHER_SCHEME.match(rest):
        raise Misuse(f"addresses begin with {SCHEME}, as in mq://localhost:9876, not {other[0]}")
    login, at, hosts = rest.rpartition("@")
    if at:
        key, colon, secret = login.partition(":")
        if not (key and colon and secret):
            raise Misuse("credentials are given as mq://accessKey:secretKey@host:port")
        credentials: Credentials | None = Credentials(unquote(key), unquote(secret))
    else:
        credentials = _credentials_of_file(os.environ.get(CREDENTIALS_FILE, ""))
    servers = [_address(host.strip()) for host in hosts.replace(";", ",").split(",")]
    return servers, credentials


def parse_tls(url: str | None) -> TlsOptions | None:
    """How to speak TLS with them: `mqs://host?ca=FILE&cert=FILE&key=FILE&verify=full|ca|none`."""
    text = given_url(url)
    if not text.startswith(TLS_SCHEME):
        return None
    options = dict(parse_qsl(text.partition("?")[2], keep_blank_values=True))
    if unknown := options.keys() - {"ca", "cert", "key", "verify"}:
        raise Misuse(f"{min(unknown)!r} is not an option of mqs://; use ca, cert, key, verify")
    if options.get("verify", FULL) not in (FULL, CA, NONE):
        raise Misuse(f"verify is {FULL}, {CA} or {NONE}")
    return TlsOptions(**options)


def given_url(url: str | None) -> str:
    """The address itself, or AEROBEE_URL, or this machine."""
    return url or os.environ.get("AEROBEE_URL") or f"{SCHEME}127.0.0.1:{DEFAULT_PORT}"


def _credentials_of_file(path: str) -> Credentials | None:
    """As innerClientAuthenticationCredentials writes them, so that one file serves both."""
    if not path:
        return None
    try:
        found = json.loads(Path(path).read_text())
        return Credentials(str(found["accessKey"]), str(found["secretKey"]))
    except OSError as error:
        wrong = error.strerror or "it cannot be read"
    except (ValueError, KeyError, TypeError):  # their messages would quote the file
        wrong = 'it has to hold {"accessKey":"...","secretKey":"..."}'
    raise Misuse(f"{CREDENTIALS_FILE} names {path}: {wrong}")


def _address(host: str) -> str:
    name, colon, port = host.rpartition(":")
    if not colon or (host.startswith("[") and host.endswith("]")):
        name, port = host, str(DEFAULT_PORT)
    if not name or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise Misuse(f"{name!r} has no valid port: expected host:port, as in localhost:9876")
    return f"{name}:{port}"
