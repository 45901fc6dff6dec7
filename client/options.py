"""The rarer settings of a consumer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aerobee.client.rebalance import Strategy


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Every field has a default that suits most consumers."""

    # How the group splits the queues: a name from `rebalance.STRATEGIES`, or a function.
    strategy: str | Strategy = "averagely"
    # Pulling pauses while so many messages, or bytes, are taken and not finished.
    prefetch_count: int = 4096
    prefetch_bytes: int = 64 << 20
    # How many messages one pull asks for; Apache's brokers give 32 at most.
    pull_count: int = 1024
    # Retries before a message goes to the dead letters; None: the group's setting.
    max_retries: int | None = None
    # Seconds between commits of the finished offsets.
    commit_interval: float = 5.0
    # Broadcasting: the file of this reader's offsets; None: in the user's state folder.
    state_path: Path | None = None
