"""A group's progress: kept by the broker or, for broadcasting, in a local file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from aerobee.client.errors import AerobeeError, refusal
from aerobee.client.transport.remoting import Remoting, log_level
from aerobee.client.transport.routes import Routes
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command

log = logging.getLogger("aerobee.offsets")


class Offsets(Protocol):
    """Where a group's progress is kept."""

    async def load(self, queue: MessageQueue) -> int | None:
        """The offset to continue from; None when the group has none."""

    async def save(
        self, offsets: Mapping[MessageQueue, int], *, confirm: bool
    ) -> Mapping[MessageQueue, int]:
        """Save these; `confirm`: wait for the broker's answer. Returns those that were saved."""


class BrokerOffsets:
    """Offsets in the broker, for groups that share the queues."""

    def __init__(self, remoting: Remoting, routes: Routes, group: str) -> None:
        self._remoting = remoting
        self._routes = routes
        self._group = group

    async def load(self, queue: MessageQueue) -> int | None:
        ext = self._ext(queue) | {"setZeroIfNotFound": "false"}
        answer = await self._remoting.request(
            self._routes.address(queue.broker_name),
            Command(RequestCode.QUERY_CONSUMER_OFFSET, ext),
        )
        if answer.code == ResponseCode.SUCCESS:
            return int(answer.ext["offset"])
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        raise refusal(answer.code, answer.remark, what=f"the offset of group {self._group!r}")

    async def save(
        self, offsets: Mapping[MessageQueue, int], *, confirm: bool
    ) -> Mapping[MessageQueue, int]:
        saved = await asyncio.gather(
            *(self._save_one(queue, offset, confirm) for queue, offset in offsets.items())
        )
        return {queue: offsets[queue] for queue, kept in zip(offsets, saved, strict=True) if kept}

    async def _save_one(self, queue: MessageQueue, offset: int, confirm: bool) -> bool:
        ext = self._ext(queue) | {"commitOffset": str(offset)}
        command = Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        try:
            address = self._routes.address(queue.broker_name)
            if confirm:
                answer = await self._remoting.request(address, command)
                if answer.code != ResponseCode.SUCCESS:
                    raise refusal(answer.code, answer.remark, what=f"offset {offset} of {queue}")
            else:
                await self._remoting.oneway(address, command)
        except AerobeeError as error:
            text = "offset %d of %s was not committed: %s"
            log.log(log_level(error), text, offset, queue, error)
            return False
        return True

    def _ext(self, queue: MessageQueue) -> dict[str, str]:
        return {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "bname": queue.broker_name,
        }


class LocalOffsets:
    """Offsets in a local file, for broadcasting: each reader has its own progress."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets: dict[str, int] | None = None
        self._lock = asyncio.Lock()  # one reader or writer of the file at a time

    async def load(self, queue: MessageQueue) -> int | None:
        async with self._lock:
            if self._offsets is None:
                self._offsets = await asyncio.to_thread(self._read)
            return self._offsets.get(_queue_name(queue))

    async def save(
        self, offsets: Mapping[MessageQueue, int], *, confirm: bool
    ) -> Mapping[MessageQueue, int]:
        async with self._lock:
            if self._offsets is None:
                self._offsets = await asyncio.to_thread(self._read)
            self._offsets |= {_queue_name(queue): offset for queue, offset in offsets.items()}
            await asyncio.to_thread(self._write, dict(self._offsets))
        return offsets

    def _read(self) -> dict[str, int]:
        try:
            found = json.loads(self.path.read_text())
            return {str(name): int(offset) for name, offset in found["offsets"].items()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._unusable("read", error) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise AerobeeError(
                f"the offsets file {self.path} cannot be read: {error}",
                hint="delete it to start from the latest messages",
            ) from error

    def _write(self, offsets: dict[str, int]) -> None:
        # Another reader of the group on this machine may be writing the same file.
        temporary = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("w") as file:
                json.dump({"offsets": offsets}, file, indent=1, sort_keys=True)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise self._unusable("written", error) from error

    def _unusable(self, verb: str, error: OSError) -> AerobeeError:
        return AerobeeError(
            f"the offsets file {self.path} cannot be {verb}: {error.strerror or error}",
            hint="set another path with ConsumerOptions.state_path",
        )


def _queue_name(queue: MessageQueue) -> str:
    return f"{queue.topic} {queue.broker_name} {queue.queue_id}"


def default_offsets_path(name_servers: list[str], group: str) -> Path:
    """In the user's state folder, one file per cluster and group."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    cluster = re.sub(r"[^\w.-]+", "_", ",".join(sorted(name_servers)))
    return Path(state) / "aerobee" / "offsets" / cluster / f"{group.replace('%', '_')}.json"
