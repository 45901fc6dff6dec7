"""One flush of the log."""

from __future__ import annotations

from dataclasses import dataclass

from aerobee.broker.store.files.mapped_file import MappedFile


@dataclass(slots=True)
class LogJob:
    """A flush of the log up to `end`."""

    files: list[MappedFile]
    end: int
    timestamp: int  # of the last message that it covers
    error: OSError | None = None
    took_ms: float = 0.0
