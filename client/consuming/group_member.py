"""What assignment and pull loops need of a consumer's membership."""

from __future__ import annotations

import asyncio
from typing import Protocol

from aerobee.client.consuming.options import ConsumerOptions
from aerobee.client.consuming.process_queue import ProcessQueue, QueueOwner
from aerobee.client.consuming.subscription import Subscription
from aerobee.client.core import Core
from aerobee.protocol.files.record import StoredMessage


class GroupMember(QueueOwner, Protocol):
    """A member of a group: its options, and what it does with queues and messages."""

    core: Core
    group: str
    broadcast: bool
    locks_queues: bool
    options: ConsumerOptions
    room: asyncio.Event

    def subscription(self, topic: str) -> Subscription: ...

    def offer(self, process_queue: ProcessQueue, stored: list[StoredMessage]) -> None: ...

    def make_ready(self, process_queue: ProcessQueue) -> None: ...

    def forget_revoked(self) -> None: ...

    def move(self, process_queue: ProcessQueue, queue_offset: int) -> None: ...

    async def begin_anew(self, process_queue: ProcessQueue) -> None: ...
