"""The brokerId that a controller has given to this folder, as RocketMQ 5 keeps it.

brokerIdentity        cluster#name#id
brokerIdentity-temp   cluster#name#id#code, while it is requested: the code proves that it is ours
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog

from aerobee.broker.ha.arbiter import ArbiterError
from aerobee.broker.ha.controller_client import ControllerClient
from aerobee.broker.settings import Settings
from aerobee.broker.store.errors import StoreError
from aerobee.broker.store.files.disk import Disk, make_folder
from aerobee.protocol.wire import controller_codes as controller
from aerobee.protocol.wire.codes import ResponseCode

log = structlog.get_logger("aerobee.ha")

FILE_NAME: Final = "brokerIdentity"
TRIES: Final = 30
AGAIN_S: Final = 1.0


class Identity(NamedTuple):
    cluster: str
    name: str
    broker_id: int
    code: str = ""

    def encode(self) -> bytes:
        parts = (self.cluster, self.name, str(self.broker_id), self.code)
        return "#".join(part for part in parts if part).encode()

    @staticmethod
    def decode(data: bytes) -> Identity:
        """ValueError when it is malformed."""
        cluster, name, number, *code = data.decode().strip().split("#")
        return Identity(cluster, name, int(number), *code[:1])


class IdentityFile:
    def __init__(self, settings: Settings, disk: Disk) -> None:
        self._settings = settings
        self._disk = disk
        self._path = os.path.join(settings.store_path_root_dir, FILE_NAME)

    def load(self, suffix: str = "") -> Identity | None:
        """None: there is none. StoreError when it cannot be used."""
        path, settings = self._path + suffix, self._settings
        try:
            if not self._disk.exists(path):
                return None
            found = Identity.decode(self._disk.read_small(path))
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{path} cannot be read: {error}; it holds the brokerId that the controller gave "
                f"to this folder, as cluster#name#id: `mqadmin getSyncStateSet` shows the ids"
            ) from error
        if found[:2] != (settings.broker_cluster_name, settings.broker_name):
            raise StoreError(
                f"{path} is of broker {found.name} in cluster {found.cluster}, the settings are of "
                f"{settings.broker_name} in {settings.broker_cluster_name}: take the folder of the "
                f"one, or the settings of the other"
            )
        return found

    def save(self, identity: Identity, suffix: str = "") -> None:
        folder, path = os.path.dirname(self._path), self._path + suffix
        make_folder(self._disk, folder)
        self._disk.write_small(path + ".tmp", identity.encode())
        self._disk.rename(path + ".tmp", path)
        self._disk.syncdir(folder)

    def forget(self, suffix: str) -> None:
        if self._disk.exists(self._path + suffix):
            self._disk.unlink(self._path + suffix)


async def given_id(
    settings: Settings,
    disk: Disk,
    client: ControllerClient,
    code: str,
    go_on: Callable[[], bool] = lambda: True,
) -> int:
    """Our brokerId, asked for at the first start; `code` is ours alone. ArbiterError when no
    controller answers, StoreError or OSError when the folder does not allow it."""
    file = IdentityFile(settings, disk)
    if (known := file.load()) is not None:
        return known.broker_id
    for tries_left in reversed(range(TRIES)):
        try:
            return await _asked_for(settings, file, client, code)
        except ArbiterError as error:
            if not (tries_left and go_on()):
                raise
            log.warning("the controller has not given a brokerId", reason=str(error))
        await asyncio.sleep(AGAIN_S)
    raise AssertionError


async def _asked_for(
    settings: Settings, file: IdentityFile, client: ControllerClient, code: str
) -> int:
    fields = {
        "clusterName": settings.broker_cluster_name,
        "brokerName": settings.broker_name,
    }
    wanted = file.load("-temp")  # left by a kill during an earlier request
    if wanted is None:
        answer = await client.ask(controller.GET_NEXT_BROKER_ID, fields)
        number = int(answer.ext.get("nextBrokerId", 0))
        wanted = Identity(fields["clusterName"], fields["brokerName"], number, code)
        file.save(wanted, "-temp")
    apply = {"appliedBrokerId": wanted.broker_id, "registerCheckCode": wanted.code}
    answer = await client.ask(controller.APPLY_BROKER_ID, fields | apply)
    if answer.code != ResponseCode.SUCCESS:  # another broker was first
        file.forget("-temp")
        raise ArbiterError(f"id {wanted.broker_id} is taken: {answer.remark}")
    file.save(Identity(*wanted[:3]))
    file.forget("-temp")
    log.info("the controller has given a brokerId", broker_id=wanted.broker_id)
    return wanted.broker_id
