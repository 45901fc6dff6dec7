"""config/*.json: replaced whole, never rewritten in place; the one before is kept as `.bak`.

    write <name>.tmp, sync it; rename <name> to <name>.bak, <name>.tmp to <name>; sync the folder

Whatever moment the power goes, <name> or <name>.bak is a whole file.
"""

from __future__ import annotations

import os
from typing import Any, Final

import structlog

from aerobee.broker.store.files.disk import Disk, make_folder
from aerobee.broker.store.files.real_disk import RealDisk
from aerobee.protocol.files.config_seal import is_broken, seal, without_seal
from aerobee.protocol.json import fastjson

log = structlog.get_logger("aerobee.store")
PRIVATE: Final = 0o600
_real_disk = RealDisk()


def load_json(path: str, *, disk: Disk = _real_disk, strict: bool = False) -> dict[Any, Any] | None:
    """The object in the file; from `.bak`, with a warning, when the file is unreadable. `strict`:
    it is not edited by hand, so one that does not match its checksum is unreadable, too.

    OSError when the system does not let us read what may be whole."""
    return read_json(path, disk, strict=strict)[0]


def read_json(
    path: str, disk: Disk, *, strict: bool = False
) -> tuple[dict[Any, Any] | None, bytes]:
    """Like `load_json`, with the bytes that the object was read from."""
    value, reason, data = _read(disk, path, strict)
    if value is not None:
        return value, data
    spare, spare_reason, data = _read(disk, path + ".bak", strict)
    if spare is not None:
        log.warning("a config file is read from its .bak", path=path, reason=str(reason))
        return spare, data
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
    return None, b""


def _read(
    disk: Disk, path: str, strict: bool
) -> tuple[dict[Any, Any] | None, str | OSError, bytes]:
    data = b""
    try:
        if not disk.exists(path):
            return None, "missing", data
        data = disk.read_small(path)
        value = fastjson.loads(data) if data.strip() else None
    except OSError as error:
        return None, error, data
    except ValueError as error:
        return None, str(error), data
    if not isinstance(value, dict):
        return None, "it holds no JSON object", data
    if is_broken(data):
        if strict:
            return None, "it does not match its checksum", data
        log.warning(
            "a config file does not match its checksum: it was changed by hand, or is damaged; "
            "it is used as it is; compare it with its .bak",
            path=path,
        )
    return without_seal(value), "", data


def save_json(path: str, value: dict[Any, Any], *, disk: Disk = _real_disk) -> None:
    """Replace the file; OSError when the disk refuses, the old content then stays."""
    write_fresh(path, seal(fastjson.dumps(value, indent=1)), disk)
    put_in_place(path, disk)


def save_private_json(path: str, value: dict[Any, Any], disk: Disk) -> None:
    """The same for secrets: only the owner may read the file."""
    make_folder(disk, os.path.dirname(path))
    disk.write_small(path + ".tmp", seal(fastjson.dumps(value, indent=1)), PRIVATE)
    put_in_place(path, disk)


def write_fresh(path: str, data: bytes, disk: Disk) -> None:
    """Write and sync the new content of `path` under another name."""
    make_folder(disk, os.path.dirname(path))
    disk.write_small(path + ".tmp", data)


def put_in_place(path: str, disk: Disk) -> None:
    """Let what `write_fresh` wrote be the file."""
    if _looks_whole(disk, path):
        disk.rename(path, path + ".bak")
    disk.rename(path + ".tmp", path)
    disk.syncdir(os.path.dirname(path))


def _looks_whole(disk: Disk, path: str) -> bool:
    """Whether the old file may become `.bak`: a torn one must not push out a good one."""
    if not disk.exists(path):
        return False
    data = disk.read_small(path).strip()
    return data.startswith(b"{") and data.endswith(b"}")
