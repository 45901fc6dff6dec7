"""What the store raises: each says what happened, to what, and what to do."""

from __future__ import annotations

import errno
from typing import Final

NO_MORE_FILES: Final = (errno.EMFILE, errno.ENFILE)
NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
_OPEN_FILES: Final = (
    "raise the limit of open files (ulimit -n; LimitNOFILE of systemd; nofile of Docker): every "
    "connection and every file of the log takes one"
)
_ROOM: Final = "free space on that disk: the broker then resumes without a restart"
_REMEDIES: Final = {
    errno.EMFILE: _OPEN_FILES,
    errno.ENFILE: _OPEN_FILES,
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EIO: "the device cannot read or write there: copy the folder to a sound one by a tool "
    "that leaves out what cannot be read (ddrescue); `aerobee store verify` shows what is damaged",
    errno.ENOMEM: "every file of the log takes a map: raise vm.max_map_count (sysctl), or give "
    "the machine more memory",
}


def is_no_space(error: BaseException | None) -> bool:
    """Whether a disk or a quota is full: writes work again once space is freed."""
    return isinstance(error, OSError) and error.errno in NO_SPACE


def remedy_for(error: Exception, otherwise: str) -> str:
    """What to do about a file that could not be used."""
    number = error.errno if isinstance(error, OSError) else None
    return _REMEDIES.get(number or 0, otherwise)


class StoreError(Exception):
    """The store cannot be opened or cannot continue; the text is meant for the operator."""


class StoreLocked(StoreError):
    """Another broker has this directory."""


class WrongFileSize(StoreError):
    """A file's length is not the configured one."""

    def __init__(
        self, path: str, found: int, expected: int, setting: str, *, lost: bool = False
    ) -> None:
        """`lost`: it was longer once, according to the files beside it or the checkpoint."""
        if lost:
            text = (
                f"it had {expected}, and what follows was written too: restore it from a copy of "
                f"the store"
            )
        else:
            text = (
                f"{setting} says {expected}: set {setting}={found} if the store was written with "
                f"that size; if not, restore the file from a copy of the store"
            )
        super().__init__(f"{path} is {found} bytes long, but {text}; nothing was changed")
        self.path, self.found, self.expected = path, found, expected
