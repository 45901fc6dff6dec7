"""Protection against other sites' pages (CSRF), DNS rebinding and hostile content."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from aerobee.client.console.options import LOOPBACK

# Scripts and styles come from the package's files only, and text never becomes markup.
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def host_name(value: str) -> str:
    """The name in a Host header, without its port and without brackets."""
    try:
        return (urlsplit(f"//{value}").hostname or "").rstrip(".").lower()
    except ValueError:
        return ""


def is_our_host(value: str, allowed: Iterable[str]) -> bool:
    """Whether this host name is ours: else it is DNS rebinding."""
    name = host_name(value)
    return bool(name) and name in {*LOOPBACK, *(host.lower() for host in allowed)}


def is_same_site(host: str, origin: str | None, fetch_site: str | None) -> bool:
    """Whether one of our pages asked. Tools that are not browsers send neither header."""
    if fetch_site is not None and fetch_site != "same-origin":
        return False
    if origin is None:
        return True
    parts = urlsplit(origin)
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


def is_within(address: str, networks: Iterable[Network]) -> bool:
    """Whether a peer is one of those; an IPv4 address may be mapped into IPv6."""
    try:
        peer = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    peer = getattr(peer, "ipv4_mapped", None) or peer
    return any(peer in network for network in networks)


def is_equal(given: str | None, wanted: str) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest((given or "").encode(), wanted.encode())


def csv_cell(text: str) -> str:
    """A CSV cell that no spreadsheet interprets as a formula."""
    guarded = f"'{text}" if text.startswith(_FORMULA) else text
    return '"' + guarded.replace('"', '""') + '"'


def file_name(text: str) -> str:
    """A file name for a download that is valid on every system."""
    return "".join(sign if sign.isascii() and sign.isalnum() else "-" for sign in text)[:80]
