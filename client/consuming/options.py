"""The rarer settings of a consumer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from aerobee.client.consuming.rebalance import Strategy
from aerobee.client.errors import Misuse
from aerobee.client.serializers import Serializer
from aerobee.protocol.json.fastjson import MessageQueue

Start = Literal["first", "last"] | datetime | float


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Every field has a default that suits most consumers."""

    # How the group splits the queues: a name from `rebalance.STRATEGIES`, or a function.
    strategy: str | Strategy = "averagely"
    # Backpressure: pulling pauses while this many messages, or bytes, are unfinished.
    prefetch_count: int = 4096
    prefetch_bytes: int = 64 << 20
    # How many messages one pull asks for; Apache's brokers give 32 at most.
    pull_count: int = 1024
    # Retries before a message goes to the dead letters; None: the group's setting.
    max_retries: int | None = None
    # Seconds before each retry that names none: one after the other, the last for all further ones,
    # or a function of the retry's number (from 1). None: the group's growing delays.
    backoff: Sequence[float] | Callable[[int], float] | None = None
    # Called after each rebalance with the queues that were assigned and those that were revoked.
    on_rebalance: Callable[[list[MessageQueue], list[MessageQueue]], object] | None = None
    # Decodes a body into `message.value`; None: the client's.
    serializer: Serializer | None = None
    # Seconds between commits of the finished offsets.
    commit_interval: float = 5.0
    # Broadcasting: the file of this reader's offsets; None: in the user's state folder.
    state_path: Path | str | None = None

    def __post_init__(self) -> None:
        for name in ("prefetch_count", "prefetch_bytes", "pull_count", "commit_interval"):
            value = getattr(self, name)
            if value <= 0:
                raise Misuse(f"{name} is {value}: it must be above 0")
        if self.backoff is not None and not callable(self.backoff) and not self.backoff:
            raise Misuse("backoff is empty: name a delay, or leave it out for the group's delays")

    def delay_before(self, retry: int) -> float | None:
        """The delay that `backoff` gives for the retry with that number."""
        if self.backoff is None:
            return None
        if callable(self.backoff):
            return self.backoff(retry)
        return self.backoff[min(retry, len(self.backoff)) - 1]
