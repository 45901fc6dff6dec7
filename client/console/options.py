"""What a console is told at its start."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Any, Final

from aerobee.client.errors import Misuse

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
HEADER: Final = re.compile(r"[A-Za-z0-9-]+")


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """Read-only, on loopback and without a token unless it is said otherwise."""

    url: str | None = field(repr=False)  # it may hold a secret
    write: bool = False
    token: str = field(default="", repr=False)
    hosts: tuple[str, ...] = ()  # names besides loopback's by which browsers may come
    auth_header: str = ""  # in which a proxy says who somebody is; then nobody comes without
    proxies: tuple[str, ...] = ()  # addresses and networks of those that are believed
    hide_bodies: bool = False
    known_settings: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)

    @property
    def is_for_strangers(self) -> bool:
        """Whether it may listen where others reach it: it asks, or is told, who somebody is."""
        return bool(self.token or self.auth_header)

    def check(self) -> None:
        """Misuse when a header would be believed of anybody, or of nobody."""
        if bool(self.auth_header) != bool(self.proxies):
            raise Misuse("a header that says who somebody is needs the proxies that may say so")
        if self.auth_header and not HEADER.fullmatch(self.auth_header):
            raise Misuse(f"{self.auth_header!r} is no name of a header")
        self.networks()

    def networks(self) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
        try:
            return [ipaddress.ip_network(each.strip(), strict=False) for each in self.proxies]
        except ValueError as error:
            raise Misuse(f"a proxy is an address or a network: {error}") from None
