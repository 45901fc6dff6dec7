"""An answer that the browser saves as a file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Download:
    name: str
    body: bytes
    content_type: str
