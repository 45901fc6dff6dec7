"""A message that an operator passes to one member: handled as any other, without an offset."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from aerobee.client.message import Body, Message
from aerobee.client.serializers import Serializer
from aerobee.protocol.files.record import StoredMessage

ANSWER_SECONDS: Final = 9.0  # the broker waits for 10


class Handed:
    """Takes the place of the queue: reports the message's outcome to the operator."""

    revoked = False

    def __init__(self, stored: StoredMessage, broker: str, serializer: Serializer | None) -> None:
        self.serializer = serializer
        self.message = Message(stored, broker, self)
        self._begun = time.monotonic()
        loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[tuple[str, str]] = loop.create_future()

    async def result(self) -> dict[str, Any]:
        """RocketMQ's ConsumeMessageDirectlyResult."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                outcome, remark = await asyncio.shield(self._outcome)
        except TimeoutError:
            outcome, remark = "CR_LATER", f"still running after {ANSWER_SECONDS:g} s"
        return {
            "autoCommit": True,
            "consumeResult": outcome,
            "order": False,
            "remark": remark,
            "spentTimeMills": round((time.monotonic() - self._begun) * 1000),
        }

    def _end(self, message: Message, outcome: str, remark: str) -> None:
        message.finished = True
        if not self._outcome.done():
            self._outcome.set_result((outcome, remark))

    def finish(self, message: Message) -> None:
        self._end(message, "CR_SUCCESS", "")

    async def retry(self, message: Message, delay: float | None, reason: str) -> None:
        self._end(message, "CR_LATER", reason)

    async def reject(self, message: Message, reason: str) -> None:
        self._end(message, "CR_THROW_EXCEPTION", reason)

    async def reply(
        self, message: Message, body: Body, properties: Mapping[str, str] | None
    ) -> bool:
        return False  # the requester no longer waits for it
