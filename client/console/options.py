"""What a console is told at its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """Read-only, on loopback and without a token unless it is said otherwise."""

    url: str | None = field(repr=False)  # it may hold a secret
    write: bool = False
    token: str = field(default="", repr=False)
    hosts: tuple[str, ...] = ()  # names besides loopback's by which browsers may come
    hide_bodies: bool = False
    known_settings: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
