"""Makes a broker lose its oldest messages, as its cleaning does when they expire."""

from __future__ import annotations

import os
import time

from peers.aerobee_broker import AerobeeBroker
from peers.wire import Wire, pull_ext


def trim_oldest_file(broker: AerobeeBroker, topic: str, queue_id: int) -> int:
    """Lets the oldest log files look expired, asks the broker to clean; the first offset left."""
    files = sorted((broker.store / "commitlog").iterdir())
    assert len(files) > 2, "there is nothing to trim"
    long_ago = time.time() - 100 * 3600
    expired = files[: len(files) // 2]
    for file in expired:
        os.utime(file, (long_ago, long_ago))
    deadline = time.monotonic() + 30
    with Wire(broker.broker) as wire:
        while time.monotonic() < deadline:
            assert wire.request(329, {}).code == 0  # files go one after the other, then
            are_gone = not any(file.exists() for file in expired)  # the queue's beginning moves
            answer = wire.request(31, {"topic": topic, "queueId": str(queue_id)})
            first = int(answer.ext["offset"])
            if are_gone and first and wire.request(11, pull_ext(topic, queue_id, first)).code == 0:
                return first
            time.sleep(0.2)
    raise AssertionError("the broker kept its oldest files")
