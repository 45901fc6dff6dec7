"""config/*.json: replaced whole, never rewritten in place; the one before is kept as `.bak`.

    write <name>.tmp, sync it; rename <name> to <name>.bak, <name>.tmp to <name>; sync the folder

Whatever moment the power goes, <name> or <name>.bak is a whole file.
"""

from __future__ import annotations

import os
from typing import Any

import structlog

from aerobee.broker.store.disk import Disk, RealDisk, make_folder
from aerobee.protocol import fastjson

log = structlog.get_logger("aerobee.store")
_real_disk = RealDisk()


def load_json(path: str, *, disk: Disk = _real_disk) -> dict[Any, Any] | None:
    """The object in the file; from `.bak`, with a warning, when the file is unreadable.

    OSError when the system does not let us read what may be whole."""
    value, reason = _read(disk, path)
    if value is not None:
        return value
    spare, spare_reason = _read(disk, path + ".bak")
    if spare is not None:
        log.warning("a config file is read from its .bak", path=path, reason=str(reason))
        return spare
    for refusal in (reason, spare_reason):
        if isinstance(refusal, OSError):
            raise refusal
    if reason != "missing" or spare_reason != "missing":
        log.error(
            "a config file and its .bak cannot be read: starting without it",
            path=path,
            reason=reason,
            bak_reason=spare_reason,
        )
    return None


def _read(disk: Disk, path: str) -> tuple[dict[Any, Any] | None, str | OSError]:
    try:
        if not disk.exists(path):
            return None, "missing"
        data = disk.read_small(path)
        value = fastjson.loads(data) if data.strip() else None
    except OSError as error:
        return None, error
    except ValueError as error:
        return None, str(error)
    return (value, "") if isinstance(value, dict) else (None, "it holds no JSON object")


def save_json(path: str, value: dict[Any, Any], *, disk: Disk = _real_disk) -> None:
    """Replace the file; OSError when the disk refuses, the old content then stays."""
    folder = os.path.dirname(path)
    make_folder(disk, folder)
    fresh = path + ".tmp"
    disk.write_small(fresh, fastjson.dumps(value, indent=1))
    if _looks_whole(disk, path):
        disk.rename(path, path + ".bak")
    disk.rename(fresh, path)
    disk.syncdir(folder)


def _looks_whole(disk: Disk, path: str) -> bool:
    """Whether the old file may become `.bak`: a torn one must not push out a good one."""
    if not disk.exists(path):
        return False
    data = disk.read_small(path).strip()
    return data.startswith(b"{") and data.endswith(b"}")
