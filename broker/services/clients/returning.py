"""Members that were online at a clean stop still count for a moment after the start.

Clients divide queues by the list of their group's members. The first one to reconnect would be
alone in the list, take all queues and begin before the others have committed their offsets. So the
list includes the members that are expected back, until they have returned or a grace period is
over. They are kept in config/consumerMembers.json.

The SDK sends its heartbeat as soon as it has a connection again. Clients before RocketMQ 5 send it
every 30 s whatever happens to the connection, and continue to work on the queues that they hold. If
they were restarted as well, they have new ids: each then replaces one of the expected members.
"""

from collections.abc import Collection
from typing import Final

import structlog

from aerobee.broker.services.config_files.json_file import load_json, save_json
from aerobee.broker.store.files.disk import Disk
from aerobee.broker.store.files.real_disk import RealDisk

log = structlog.get_logger("aerobee.clients")

_SDK: Final = "PYTHON"  # the language that its requests name
SDK_RETURN_S: Final = 3.0
RETURN_S: Final = 35.0
_GROUPS: Final = "groups"

Members = dict[str, dict[str, str]]  # group -> client id -> its language


class Returning:
    """The members that are expected back."""

    def __init__(self, path: str | None, disk: Disk | None = None) -> None:
        self._path = path
        self._disk = RealDisk() if disk is None else disk
        self._expected: Members = {}
        self._met: set[tuple[str, str]] = set()  # group and client id of those who came

    def __bool__(self) -> bool:
        return bool(self._expected)

    def load(self) -> None:
        """Read the list that the stop saved; a broker can start without it."""
        try:
            if self._path is not None and self._disk.exists(self._path):
                self._load(self._path, self._disk)
        except OSError as error:
            log.warning("the members online at the stop cannot be read", reason=str(error))

    def _load(self, path: str, disk: Disk) -> None:
        groups = (load_json(path, disk=disk) or {}).get(_GROUPS)
        for group, members in (groups if isinstance(groups, dict) else {}).items():
            if isinstance(members, dict) and members:
                self._expected[str(group)] = {str(id_): str(of) for id_, of in members.items()}
        for name in (path, path + ".bak"):  # after a crash an old list would be wrong
            if disk.exists(name):
                disk.unlink(name)

    def save(self, members: Members) -> None:
        """At a clean stop; OSError when the disk refuses."""
        if self._path is not None and members:
            save_json(self._path, {_GROUPS: members}, disk=self._disk)

    def of(self, group: str) -> Collection[str]:
        return self._expected.get(group, ())

    def came(self, group: str, client_id: str) -> None:
        """A client has joined: an expected one, or in place of one, preferably of the same host."""
        absent = self._expected.get(group)
        if absent is None:
            return
        if not self.settle(group, client_id) and (group, client_id) not in self._met:
            host = client_id.partition("@")[0]
            others = [id_ for id_, language in absent.items() if language != _SDK]
            for other in sorted(others, key=lambda id_: (id_.partition("@")[0] != host, id_))[:1]:
                self.settle(group, other)
        self._met.add((group, client_id))

    def settle(self, group: str, client_id: str) -> bool:
        """Stop expecting it; returns whether it was expected."""
        absent = self._expected.get(group, {})
        expected = absent.pop(client_id, None) is not None
        if expected and not absent:
            del self._expected[group]
        return expected

    def give_up(self, *, sdk_only: bool) -> list[str]:
        """The grace period is over; returns the groups whose members have not all returned."""
        late = [
            (group, client_id)
            for group, members in self._expected.items()
            for client_id, language in members.items()
            if language == _SDK or not sdk_only
        ]
        for group, client_id in late:
            self.settle(group, client_id)
        if late:
            log.info("members of groups did not come back after the stop", members=late[:16])
        return list(dict.fromkeys(group for group, _ in late))
