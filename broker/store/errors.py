"""What the store raises: each says what happened, to what, and what to do."""

from __future__ import annotations


class StoreError(Exception):
    """The store cannot be opened or cannot go on; the text is meant for the operator."""


class StoreLocked(StoreError):
    """Another broker has this directory."""


class WrongFileSize(StoreError):
    """A file's length is not the configured one."""

    def __init__(self, path: str, found: int, expected: int, setting: str) -> None:
        super().__init__(
            f"{path} is {found} bytes long but {setting} says {expected}: set {setting}={found} "
            f"if the store was written with that size, or move the file away if it is damaged"
        )
        self.path, self.found, self.expected = path, found, expected
