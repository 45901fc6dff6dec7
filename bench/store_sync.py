"""Group commit beside its two ceilings: what the disk allows and what the processor allows.

The disk: copying the bytes of all waiting senders and one fdatasync, repeatedly, with nothing else
to do. The processor: the same senders on the same code path without waiting for the disk
(ASYNC_FLUSH). With several lists of 32 in flight the smaller of the two is the limit. Those of one
list (1 or 32 waiting) all wait for the same sync, so disk and processor work in turn and their
times add up. A further ceiling, which no disk reaches: syncs of a single message per second, times
the number of waiting senders. All are measured in turns, in short rounds, on the loop that the
broker runs on; medians.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from aerobee.broker.base.clock import Clock
from aerobee.broker.store.files.real_disk import RealDisk
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.results import PutStatus
from aerobee.broker.store.settings import StoreSettings
from bench.store_messages import LIST, Batch, append, append_objects, batch_of

WAITING = (1, 32, 256)
ROUNDS = 5
RECORD_SIZE = 1300  # of a message of 1 KB, about
Row = dict[str, Any]


class Rates(NamedTuple):
    """A second's, all of them."""

    fdatasyncs: float  # of one message, with nothing else to do
    group_syncs: float  # ... of as many as wait
    unwaited: float  # appends that nobody waits for, dispatched
    appends: float  # acknowledged after their sync
    syncs: float  # that it took


def sync_rows(folder: Path, seconds: float) -> list[Row]:
    rows = []
    for waiting in WAITING:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            rates = runner.run(measure(folder / f"s{waiting}", waiting, seconds / ROUNDS))
        rows.append(sync_row(waiting, rates))
    return rows


def sync_row(waiting: int, rates: Rates) -> Row:
    disk = rates.group_syncs * waiting
    binds = "disk" if disk <= rates.unwaited else "CPU"
    in_turn = 1 / (1 / disk + 1 / rates.unwaited)
    return {
        "row": f"SYNC_FLUSH, {waiting} waiting",
        "appends/s": round(rates.appends),
        "of what binds": f"{rates.appends / min(disk, rates.unwaited):.0%} ({binds})",
        "disk allows": round(disk),
        "of it": f"{rates.appends / disk:.0%}",
        "CPU allows": round(rates.unwaited),
        "of that": f"{rates.appends / rates.unwaited:.0%}",
        "in turn": round(in_turn),
        "of these": f"{rates.appends / in_turn:.0%}",
        "syncs/s": round(rates.syncs),
        "fdatasync/s": round(rates.fdatasyncs),
        "of it times those waiting": f"{rates.appends / (rates.fdatasyncs * waiting):.0%}",
    }


async def measure(folder: Path, waiting: int, seconds: float) -> Rates:
    waited = await opened(folder / "waited", "SYNC_FLUSH")
    unwaited = await opened(folder / "unwaited", "ASYNC_FLUSH")
    rounds = []
    for _ in range(ROUNDS):
        one = fdatasync_rate(folder, seconds)
        all_waiting = fdatasync_rate(folder, seconds, waiting) if waiting > 1 else one
        free, _ = await send_for(unwaited, waiting, seconds)
        unwaited.flush.step()  # the disk has nothing of it left to do when the next part begins
        rounds.append(Rates(one, all_waiting, free, *await send_for(waited, waiting, seconds)))
    await waited.stop()
    await unwaited.stop()
    return Rates(*map(statistics.median, zip(*rounds, strict=True)))


async def opened(folder: Path, flush_disk_type: str) -> MessageStore:
    settings = StoreSettings(
        str(folder),
        flush_disk_type=flush_disk_type,
        mapped_file_size_commit_log=256 << 20,
        disk_guard_enable=False,
    )
    store = MessageStore(settings, clock=Clock())
    store.load()
    await store.start()
    append_objects(store, batch_of(store, 1024, 1))
    await asyncio.sleep(0.5)  # the first file is there and warm
    return store


async def send_for(store: MessageStore, waiting: int, seconds: float) -> tuple[float, float]:
    """So many senders, each sending its next message when the last is acknowledged; appends and
    syncs a second, until all are in their queues.

    What is acknowledged together is sent again together, up to 32 in one put: as the messages of
    several clients come out of one read of the sockets.
    """
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    senders = -(-waiting // LIST)
    acks = 0

    def send(batch: Batch) -> None:
        def acknowledged(status: PutStatus) -> None:
            nonlocal acks, senders
            assert status is PutStatus.PUT_OK, status
            acks += len(batch.rows)
            if time.perf_counter() < stop_at:
                loop.call_soon(send, batch)
                return
            senders -= 1
            if not senders:
                done.set_result(None)

        store.when_durable(append(store, batch), acknowledged)

    stored, flushes = store.stats.dispatched, store.stats.flushes
    started = time.perf_counter()
    stop_at = started + seconds
    for first in range(0, waiting, LIST):
        send(batch_of(store, 1024, min(LIST, waiting - first), first))
    await done
    while store.reput.step():
        pass
    took = time.perf_counter() - started
    assert store.stats.dispatched - stored == acks
    return acks / took, (store.stats.flushes - flushes) / took


def fdatasync_rate(folder: Path, seconds: float, messages: int = 1) -> float:
    """Write so many records to a file and fdatasync, one after the other; times a second."""
    disk = RealDisk()
    path = str(folder / "ceiling")
    file = disk.create(path, 64 << 20)
    file.allocate(0, file.size)
    file.sync()
    size = RECORD_SIZE * messages
    data = bytes([1]) * size
    count = position = 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        position = (position + size) % (file.size - size)
        file.write(position, data)
        file.sync()
        count += 1
    rate = count / (time.perf_counter() - started)
    file.close()
    disk.unlink(path)
    return rate
