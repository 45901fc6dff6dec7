"""The role of a broker: that of its settings, unless it was promoted since they were set.

    brokerRole    remembered                       role        an epoch begins
    ------------  -------------------------------  ----------  ------------------------------
    any           nothing                          brokerRole  no
    as then       promoted to epoch N              as then     N, unless the epoch file has it
    as then       anything else                    as then     no
    another       any                              brokerRole  if it was a slave and is none now

A changed brokerRole setting always wins. A slave that becomes a master by its settings
begins an epoch, too: from then on its log may differ from the old master's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aerobee.broker.services.config_files.json_file import load_json, save_json
from aerobee.broker.settings.replication import ROLES, SLAVE
from aerobee.broker.store.errors import StoreError
from aerobee.broker.store.files.disk import Disk

FILE_NAME: Final = "brokerRole.json"


@dataclass(frozen=True, slots=True)
class Role:
    """The saved state. `configured`: brokerRole as the settings had it."""

    configured: str
    role: str
    epoch: int = 0  # the newest epoch that this broker has seen

    @property
    def is_slave(self) -> bool:
        return self.role == SLAVE


@dataclass(frozen=True, slots=True)
class Decision:
    role: str
    epoch: int = 0  # to begin as a master if the log does not have it; 0: none


def decide_role(configured: str, saved: Role | None, last_epoch: int) -> Decision:
    """`last_epoch`: of the epoch file."""
    if saved is None:
        return Decision(configured)
    if saved.configured == configured:
        begins = not saved.is_slave and saved.epoch > last_epoch
        return Decision(saved.role, saved.epoch if begins else 0)
    promoted = saved.is_slave and configured != SLAVE
    return Decision(configured, max(saved.epoch, last_epoch, 1) + 1 if promoted else 0)


class RoleFile:
    """config/brokerRole.json. A broker that has always been master has none."""

    def __init__(self, path: str, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self.saved: Role | None = None

    def load(self) -> None:
        """OSError or StoreError when it cannot be used."""
        content = load_json(self._path, disk=self._disk)
        if content is not None:
            epoch = content.get("epoch")
            self.saved = Role(
                str(content.get("configured", "")),
                str(content.get("brokerRole", "")),
                epoch if isinstance(epoch, int) else 0,
            )
            if not {self.saved.role, self.saved.configured} <= set(ROLES):
                raise StoreError(
                    f"{self._path} is damaged: it names the roles {self.saved.role!r} and "
                    f"{self.saved.configured!r}; take its .bak, or remove it if brokerRole of the "
                    f"settings is the role you want"
                )

    def save(self, role: Role) -> None:
        if role != self.saved:
            content = {
                "brokerRole": role.role,
                "configured": role.configured,
                "epoch": role.epoch,
            }
            save_json(self._path, content, disk=self._disk)
            self.saved = role
