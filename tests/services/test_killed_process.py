"""SIGKILL of a real broker process while delays, timers and transactions are pending."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest
from peers.aerobee_broker import AerobeeBroker
from peers.tools import wait_for
from peers.wire import Wire
from services.test_exchange_with_apache import begin, commit, messages, now_ms, send


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_kills_lose_nothing_double_nothing_and_deliver_nothing_early(
    tmp_path: Path, flush: str
) -> None:
    chance = random.Random(5)
    due: dict[str, int] = {}
    started_ms = now_ms()
    with AerobeeBroker(tmp_path, flushDiskType=flush) as broker:
        for round_number in range(3):
            for number in range(60):
                body = f"timer {round_number}-{number}"
                due[body] = now_ms() + chance.randint(200, 6000)
                send(broker.broker, body, TIMER_DELIVER_MS=due[body])
            for number in range(20):
                body = f"level {round_number}-{number}"
                due[body] = now_ms() + 1000
                send(broker.broker, body, DELAY=1)
            open_half = begin(broker.broker, f"half {round_number}")
            time.sleep(chance.uniform(0.2, 1.2))
            broker.kill_and_start()
            due[f"half {round_number}"] = started_ms
            commit(broker.broker, open_half)
            with Wire(broker.broker) as wire:  # a retried commit, as by an unsure producer
                assert wire.request(37, open_half).code == 1
        wait_for(lambda: len(messages(broker.broker)) >= len(due), timeout=60, what="all came")
        time.sleep(1)  # nothing more may arrive
        found = messages(broker.broker)
        broker.stop()
    counts = Counter(bytes(message.body).decode() for message in found)
    assert counts.keys() == due.keys()
    early = [m.body for m in found if m.store_timestamp < due[bytes(m.body).decode()]]
    assert early == []
    assert {body: count for body, count in counts.items() if count > 1} == {}
