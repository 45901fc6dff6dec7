"""An answer that the browser saves and does not show."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Download:
    name: str
    body: bytes
    content_type: str
