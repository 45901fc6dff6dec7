"""Whether this replica may be elected: it has all that it ever acknowledged.

With ASYNC_FLUSH a machine that loses power may lose what was acknowledged; a killed process loses
nothing, as the page cache outlives it. The kernel's boot id tells the two apart. A folder that is
new has nothing. Such a replica is not electable until it has all that a master has confirmed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import structlog

from aerobee.broker.services.config_files.json_file import load_json, save_json
from aerobee.broker.store.files.disk import Disk

log = structlog.get_logger("aerobee.ha")

FILE_NAME: Final = "replicaState.json"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def kernel_boot_id() -> str:
    """The kernel's boot id; "" where there is none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def is_electable(
    saved: dict[str, object] | None, boot_id: str, *, was_stopped: bool, sync_flush: bool
) -> bool:
    """At a start. `was_stopped`: the last process on this folder stopped cleanly. `sync_flush`:
    this one has SYNC_FLUSH; what counts is what the last one had, if it has left that."""
    if saved is None or saved.get("electable") is not True:
        return False
    same_kernel = bool(boot_id) and saved.get("bootId") == boot_id
    return was_stopped or same_kernel or saved.get("syncFlush", sync_flush) is True


class Electability:
    def __init__(self, path: str, disk: Disk, boot_id: str) -> None:
        self._path = path
        self._disk = disk
        self._boot_id = boot_id
        self._sync_flush = False
        self.is_electable = False

    def opened(self, *, was_stopped: bool, sync_flush: bool) -> None:
        """The store is open; OSError on a disk error."""
        self._sync_flush = sync_flush
        saved = load_json(self._path, disk=self._disk)
        electable = is_electable(
            saved, self._boot_id, was_stopped=was_stopped, sync_flush=sync_flush
        )
        if saved is not None and saved.get("electable") is True and not electable:
            log.warning(
                "this replica may lack messages that it acknowledged: its machine went down before "
                "they were on disk",
                then="it is not elected until it has all that a master has confirmed",
            )
        self._save(electable)

    def caught_up(self) -> None:
        """We have all that is confirmed: as a follower that caught up, or as the master."""
        if not self.is_electable:
            self._save(True)

    def _save(self, electable: bool) -> None:
        content = {
            "bootId": self._boot_id,
            "electable": electable,
            "syncFlush": self._sync_flush,
        }
        save_json(self._path, content, disk=self._disk)
        self.is_electable = electable
