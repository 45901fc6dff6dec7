"""Counts of received bodies."""

from __future__ import annotations

from collections import Counter

from peers.java_client import Event


def bodies(messages: list[Event]) -> Counter[str]:
    return Counter(message["body"] for message in messages)


def numbered(prefix: str, count: int, first: int = 0) -> Counter[str]:
    return Counter(f"{prefix}-{n}" for n in range(first, first + count))
