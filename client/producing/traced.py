"""A sender that makes a span of each send and gives its context to the messages.

A class of its own, so that a client without telemetry runs nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aerobee.client.message import Outgoing
from aerobee.client.producing.outgoing import Delayed, Stored
from aerobee.client.producing.sender import Sender
from aerobee.client.telemetry import Telemetry
from aerobee.protocol.files.properties import NAME_END

NORMAL, FIFO, DELAY, TRANSACTION = "normal", "fifo", "delay", "transaction"


class TracedSender(Sender):
    """Sends as `Sender` does."""

    def __init__(self, *args: Any, telemetry: Telemetry, **options: Any) -> None:
        super().__init__(*args, **options)
        self._telemetry = telemetry

    def make(self, *args: Any, **options: Any) -> Outgoing:
        message = super().make(*args, **options)
        message.properties = self._telemetry.with_context(message.properties)
        return message

    async def store(self, message: Outgoing, timeout: float) -> Stored:
        kind = DELAY if isinstance(message, Delayed) else FIFO if message.order_key else NORMAL
        with self._telemetry.sending(*_trace_fields(message), kind):
            message.properties = self._telemetry.with_context(message.properties)
            return await super().store(message, timeout)

    async def send_batch(self, topic: str, batch: Sequence[Outgoing], timeout: float) -> Stored:
        """One span for all; each message keeps the context in which it was made, if it has one."""
        texts = [message.properties for message in batch]
        with self._telemetry.sending(topic, texts, 0, NORMAL):
            own = self._telemetry.with_context("")
            for message in batch:
                if f"traceparent{NAME_END}" not in message.properties:
                    message.properties += own
            return await super().send_batch(topic, batch, timeout)

    async def send_half(self, message: Outgoing, group: str, timeout: float) -> Stored:
        with self._telemetry.sending(*_trace_fields(message), TRANSACTION):
            message.properties = self._telemetry.with_context(message.properties)
            return await super().send_half(message, group, timeout)

    async def send_oneway(self, message: Outgoing) -> None:
        with self._telemetry.sending(*_trace_fields(message), NORMAL):
            message.properties = self._telemetry.with_context(message.properties)
            await super().send_oneway(message)


def _trace_fields(message: Outgoing) -> tuple[str, list[str], int]:
    return message.topic, [message.properties], len(message.body)
