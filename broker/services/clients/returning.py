"""Members that were online at a clean stop: for a moment after the start they still count.

Clients share queues by the list of their group's members. The first one back would find itself
alone, take all queues and begin before the others have committed what they finished: so the list
names those who are expected back, until they are, or the moment is over. They are kept in
config/consumerMembers.json.
"""

from typing import Final

import structlog

from aerobee.broker.services.config_files.json_file import load_json, save_json
from aerobee.broker.store.files.disk import Disk, RealDisk

log = structlog.get_logger("aerobee.clients")

RETURN_S: Final = 3.0
_GROUPS: Final = "groups"


class Returning:
    """Group -> client ids that are expected back."""

    def __init__(self, path: str | None, disk: Disk | None = None) -> None:
        self._path = path
        self._disk = RealDisk() if disk is None else disk
        self._expected: dict[str, set[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._expected)

    def load(self) -> None:
        """Read what the stop left; a broker can start without it."""
        try:
            if self._path is not None and self._disk.exists(self._path):
                self._load(self._path, self._disk)
        except OSError as error:
            log.warning("who was online at the stop cannot be read", reason=str(error))

    def _load(self, path: str, disk: Disk) -> None:
        groups = (load_json(path, disk=disk) or {}).get(_GROUPS)
        for group, ids in (groups if isinstance(groups, dict) else {}).items():
            if isinstance(ids, list) and ids:
                self._expected[str(group)] = {str(client_id) for client_id in ids}
        for name in (path, path + ".bak"):  # after a crash an old list would tell nothing true
            if disk.exists(name):
                disk.unlink(name)

    def save(self, members: dict[str, list[str]]) -> None:
        """At a clean stop; OSError when the disk refuses."""
        if self._path is not None and members:
            save_json(self._path, {_GROUPS: members}, disk=self._disk)

    def of(self, group: str) -> set[str]:
        return self._expected.get(group, set())

    def came(self, group: str, client_id: str) -> None:
        absent = self._expected.get(group)
        if absent is not None:
            absent.discard(client_id)
            if not absent:
                del self._expected[group]

    def give_up(self) -> list[str]:
        """The moment is over; the groups that somebody has not come back to."""
        groups, self._expected = list(self._expected), {}
        if groups:
            log.info("members of groups did not come back after the stop", groups=groups[:16])
        return groups
