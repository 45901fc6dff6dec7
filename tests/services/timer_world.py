"""Timers that are set, and a clock that is moved until they fire."""

from pathlib import Path
from typing import Any

from services.services_world import HandClock, World


def deliver_at(world: World, at_ms: int, body: bytes, topic: str = "T", **more: Any) -> None:
    world.send(topic, body, TIMER_DELIVER_MS=str(at_ms), UNIQ_KEY=body.hex(), **more)


def run_until(world: World, end_ms: int, step_ms: int = 100) -> dict[bytes, int]:
    """Move the clock tick by tick; when each message of topic T came."""
    seen = world.store.max_offset("T", 0)
    came: dict[bytes, int] = {}
    assert isinstance(world.clock, HandClock)
    while world.clock.at_ms < end_ms:
        world.clock.at_ms = min(end_ms, world.clock.at_ms + step_ms)
        world.run_timers()
        for message in world.read("T", start=seen):
            assert message.body not in came, "delivered twice"
            came[bytes(message.body)] = world.clock.at_ms
        seen = world.store.max_offset("T", 0)
    return came


def cut_commitlog(root: Path, end: int) -> None:
    """As a power failure: what was not flushed is not there."""
    path = root / "commitlog" / "00000000000000000000"
    with path.open("r+b") as file:
        file.seek(end)
        file.write(bytes(64 << 10))
