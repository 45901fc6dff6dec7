"""The store alone: appends, group commit, file rolls and recovery, beside what the machine allows.

    python -m bench.store [--quick] [--folder DIR] [--json FILE]

Each figure stands next to a ceiling measured in the same run on the same disk: the same bytes
written to the same kind of file; for group commit see store_sync.py. CPU is that of the thread
that appends; the median of many short rounds, so that neighbours' load shows less. Every row checks
what it stored.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.store.durability.flush_queues import CHECKPOINT_BYTES
from aerobee.broker.store.files.real_disk import RealDisk
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.settings import StoreSettings
from bench.machine import describe_machine
from bench.store_messages import LIST, Batch, append, append_objects, batch_of
from bench.store_sync import sync_rows

ROUND = 8  # puts in one timed round
STALL_NS = 10_000_000
Row = dict[str, Any]


@contextmanager
def opened(folder: Path, **changes: Any) -> Iterator[MessageStore]:
    settings = StoreSettings(str(folder), disk_guard_enable=False, **changes)
    store = MessageStore(settings, clock=Clock())
    store.load()
    try:
        yield store
    finally:
        store.close()


def dispatch(store: MessageStore) -> None:
    while store.reput.step():
        pass


def appends(
    folder: Path,
    size: int,
    total_bytes: int,
    put: Callable[[MessageStore, Batch], int] = append,
    name: str = "",
) -> Row:
    """put of lists of 32 and their dispatch to queues and index; us of CPU per message."""
    per_round = LIST * ROUND
    rounds = max(20, total_bytes // (size + 300) // per_round)
    with opened(folder) as store:
        batches = [batch_of(store, size, LIST, n * LIST) for n in range(ROUND)]
        store.commit_log.prepare_first_file()
        append_objects(store, batches[0])
        dispatch(store)
        put_us: list[float] = []
        both_us: list[float] = []
        wall = 0.0
        for _ in range(rounds):
            started, cpu = time.perf_counter(), time.thread_time_ns()
            for batch in batches:
                put(store, batch)
            middle = time.thread_time_ns()
            dispatch(store)
            end = time.thread_time_ns()
            wall += time.perf_counter() - started
            put_us.append((middle - cpu) / per_round / 1000)
            both_us.append((end - cpu) / per_round / 1000)
        check_count(store, rounds * per_round + LIST)
        written = write_us(store, size)
    return {
        "row": f"append + dispatch, {size} B{name}",
        "appends/s": round(rounds * per_round / wall),
        "us CPU": round(statistics.median(both_us), 2),
        "us CPU min": round(min(both_us), 2),
        "of it put": round(statistics.median(put_us), 2),
        "ceiling": f"write {written:.2f} us",
    }


def check_count(store: MessageStore, expected: int) -> None:
    stored = sum(store.max_offset("BenchTopic", queue_id) for queue_id in range(8))
    assert stored == expected, f"{expected} messages were put but the queues have {stored}"


def write_us(store: MessageStore, size: int) -> float:
    """The same bytes, already joined, into a file like the log's; us per message."""
    record = size + 200
    data = bytes(record * LIST)
    path = str(Path(store.settings.layout.root) / "ceiling")
    file = RealDisk().create(path, 64 << 20)
    file.allocate(0, file.size)
    times = []
    position = 0
    for _ in range(2000):
        if position + len(data) > file.size:
            position = 0
        started = time.thread_time_ns()
        file.write(position, data)
        times.append(time.thread_time_ns() - started)
        position += len(data)
    file.close()
    RealDisk().unlink(path)
    return statistics.median(times) / LIST / 1000


def rolls(folder: Path, file_size: int, files: int) -> list[Row]:
    """Every put of one 1 KB message timed over several file rolls, dispatched every 64."""
    with opened(folder, mapped_file_size_commit_log=file_size) as store:
        store.commit_log.prepare_first_file()
        one = batch_of(store, 1024, 1)
        times: list[int] = []
        blocked = 0
        clock = time.perf_counter_ns
        while store.max_physical_offset < file_size * files:
            for _ in range(64):
                waits = _voluntary_waits()
                started = clock()
                append(store, one)
                took = clock() - started
                times.append(took)
                blocked += took > STALL_NS and _voluntary_waits() > waits
            dispatch(store)
    name = f"one put over {files - 1} rolls of {file_size >> 20} MB files"
    machine = "  the same loop with an empty call (the machine)"
    return [
        latencies(name, times) | {"of them not preempted": blocked},
        latencies(machine, _empty_calls(len(times))),
    ]


def _voluntary_waits() -> int:
    """How often this thread has waited for something, other than for a turn on the processor."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def _empty_calls(count: int) -> list[int]:
    """How long an empty call takes: the time that other processes take from this one."""
    clock = time.perf_counter_ns
    times = []
    data = bytes(1300)
    for _ in range(count):
        started = clock()
        bytearray(data)
        times.append(clock() - started)
        for _ in range(60):
            data = bytes(1300)
    return times


def latencies(name: str, times: list[int]) -> Row:
    times.sort()

    def at(share: float) -> float:
        return round(times[min(int(len(times) * share), len(times) - 1)] / 1000, 1)

    return {
        "row": name,
        "p50 us": at(0.5),
        "p99.9 us": at(0.999),
        "p99.99 us": at(0.9999),
        "max ms": round(times[-1] / 1e6, 1),
        "over 10 ms": sum(1 for took in times if took > STALL_NS),
    }


def recovery(folder: Path, total_bytes: int) -> list[Row]:
    """Opening a store of this much log: after a clean stop, a kill, and with nothing to go by."""
    root = folder
    page = b""
    with opened(folder) as store:
        batch = batch_of(store, 1024, LIST)
        while store.max_physical_offset < total_bytes:
            append(store, batch)
            dispatch(store)
            if not page and store.max_physical_offset > total_bytes - CHECKPOINT_BYTES:
                store.flush.step()
                store.queue_flush.step(thorough=True)
                page = (root / "checkpoint").read_bytes()
        count = store.stats.puts

    def killed() -> None:
        """With the oldest checkpoint that a broker under load can have."""
        (root / "abort").touch()
        (root / "checkpoint").write_bytes(page)

    def lost() -> None:
        killed()
        (root / "checkpoint").unlink()
        shutil.rmtree(root / "consumequeue")
        shutil.rmtree(root / "index")

    rows = []
    cases: list[tuple[str, Callable[[], None]]] = [
        ("after a clean stop", lambda: None),
        ("after a kill", killed),
        ("after a kill, queues and index lost", lost),
    ]
    for name, damage in cases:
        damage()
        started, cpu = time.perf_counter(), time.process_time()
        with opened(folder) as store:
            took = time.perf_counter() - started
            used = time.process_time() - cpu
            check_count(store, count)
        row = f"opening {total_bytes >> 20} MB, {name}"
        rows.append({"row": row, "seconds": round(took, 2), "s CPU": round(used, 2)})
    return rows


def show(row: Row) -> None:
    facts = "   ".join(f"{name} {value}" for name, value in row.items() if name != "row")
    print(f"{row['row']:<52} {facts}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to try it out")
    parser.add_argument(
        "--folder", type=Path, help="where the stores are made (default: temporary)"
    )
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    args = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    folder = Path(tempfile.mkdtemp(prefix="aerobee-bench-", dir=args.folder))
    quick = args.quick
    rows: list[Row] = []

    def add(*found: Row) -> None:
        for row in found:
            rows.append(row)
            show(row)

    print(describe_machine())
    try:
        amount = (32 if quick else 400) << 20
        for size in (100, 1024, 10240):
            add(appends(folder / f"a{size}", size, amount))
            shutil.rmtree(folder / f"a{size}")
        add(appends(folder / "objects", 1024, amount, append_objects, " as objects"))
        shutil.rmtree(folder / "objects")
        add(*sync_rows(folder, 1.5 if quick else 5.0))
        add(*rolls(folder / "rolls", (16 if quick else 256) << 20, 4))
        shutil.rmtree(folder / "rolls")
        add(*recovery(folder / "recovery", (160 if quick else 1000) << 20))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if args.json:
        facts = {"machine": describe_machine(), "rows": rows}
        args.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
