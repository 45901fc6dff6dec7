"""The options of a console."""

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
    """By default read-only, on loopback and without a token."""

    url: str | None = field(repr=False)  # it may hold a secret
    write: bool = False
    token: str = field(default="", repr=False)
    hosts: tuple[str, ...] = ()  # host names beside loopback's that browsers may use
    auth_header: str = ""  # the header with the user that a proxy has authenticated; then required
    proxies: tuple[str, ...] = ()  # addresses and networks of trusted proxies
    hide_bodies: bool = False
    known_settings: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)

    @property
    def may_be_public(self) -> bool:
        """Whether it may listen beyond loopback: it authenticates users itself, or a proxy does."""
        return bool(self.token or self.auth_header)

    def check(self) -> None:
        """Misuse when a header would be trusted from anywhere, or from nowhere."""
        if bool(self.auth_header) != bool(self.proxies):
            raise Misuse("an authentication header needs the proxies that are trusted to set it")
        if self.auth_header and not HEADER.fullmatch(self.auth_header):
            raise Misuse(f"{self.auth_header!r} is not a header name")
        self.networks()

    def networks(self) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
        try:
            return [ipaddress.ip_network(each.strip(), strict=False) for each in self.proxies]
        except ValueError as error:
            raise Misuse(f"a proxy is an address or a network: {error}") from None
