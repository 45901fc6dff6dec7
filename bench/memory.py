"""`make memory MINUTES=30`: a broker under full load in a memory cgroup of 512 MiB (root, cc).

Clients in C send and read as fast as the broker lets them, with and without the keys that an index
needs; files of the log go as soon as they are full, so that the disk holds. Every second the
process is read. Required: no OOM kill, no refused send, anonymous memory that grows by
less than 1 MiB a minute once it is warm, and as many open files and maps at the end as then.

`--queues 20000` instead: every queue of so many gets a message and gives it back; open files, maps
and memory are counted, then and after a restart.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from peers.wire import Wire

from aerobee.protocol.wire.codes import RequestCode
from bench.brokers import AEROBEE, BrokerProcess
from bench.load_client import load

SETTINGS: Final = {
    "mappedFileSizeCommitLog": str(64 << 20),
    "fileReservedTime": "0",
    "deleteWhen": ";".join(str(hour) for hour in range(24)),
    "cleanResourceInterval": "1000",
    "deleteFileBatchMax": "100",
    "deleteCommitLogFilesInterval": "10",
    "diskGuardEnable": "false",
}
GROUPS: Final = {  # the file of the limit, and the one that counts kills
    Path("/sys/fs/cgroup/memory"): ("memory.limit_in_bytes", "memory.oom_control"),
    Path("/sys/fs/cgroup"): ("memory.max", "memory.events"),
}
WARM_SHARE: Final = 0.3  # of the time: buffers, caches and tables get their sizes
SLOPE_MAX: Final = 1.0  # MiB a minute
QUEUES_OF_A_TOPIC: Final = 8


@dataclass(frozen=True)
class Sample:
    minute: float
    anonymous_mb: float
    files: int
    maps: int


@contextmanager
def memory_group(size_mb: int) -> Iterator[Path]:
    """A fresh cgroup with that limit."""
    root = next((root for root, (limit, _) in GROUPS.items() if _has(root, limit)), None)
    if root is None or os.geteuid() != 0:
        raise SystemExit("this needs root and a memory cgroup under /sys/fs/cgroup")
    place = root / f"aerobee-memory-{os.getpid()}"
    place.mkdir()
    try:
        (place / GROUPS[root][0]).write_text(str(size_mb << 20))
        yield place
    finally:
        remove_group(place)


def remove_group(place: Path) -> None:
    """Remove the cgroup; a process that was just killed may be in it for a moment."""
    deadline = time.monotonic() + 30
    while True:
        try:
            place.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                print(f"{place} is left: it is still in use", file=sys.stderr)
                return
            time.sleep(0.1)


def _has(root: Path, limit: str) -> bool:
    return (root / limit).exists() or "memory" in _read(root / "cgroup.subtree_control").split()


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def kills(place: Path) -> int:
    text = _read(place / "memory.oom_control") or _read(place / "memory.events")
    counts = dict(line.split() for line in text.splitlines())
    return int(counts.get("oom_kill", 0))


class Watch(threading.Thread):
    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._done = threading.Event()
        self.samples: list[Sample] = []

    def run(self) -> None:
        began = time.monotonic()
        while not self._done.wait(1.0):
            try:
                self.samples.append(sample(self._broker, (time.monotonic() - began) / 60))
            except (OSError, KeyError):  # a process that was not waited for has no memory
                return  # it is gone: the load says so

    def stop(self) -> list[Sample]:
        self._done.set()
        self.join()
        return self.samples


def sample(broker: BrokerProcess, minute: float) -> Sample:
    proc = Path(f"/proc/{broker.pid}")
    with (proc / "maps").open() as maps:
        count = sum(1 for _ in maps)
    return Sample(minute, broker.memory_mb()[1], len(os.listdir(proc / "fd")), count)


def fill_queues(port: int, queues: int) -> None:
    with Wire(f"127.0.0.1:{port}", timeout=60) as wire:
        for number in range(-(-queues // QUEUES_OF_A_TOPIC)):
            name = f"Q{number}"
            count = str(QUEUES_OF_A_TOPIC)
            topic = {"topic": name, "readQueueNums": count, "writeQueueNums": count, "perm": "6"}
            topic |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
            topic |= {"topicSysFlag": "0", "order": "false"}
            _ask(wire, RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
            for queue_id in range(QUEUES_OF_A_TOPIC):
                ext = {"a": "g", "b": name, "c": "TBW102", "d": count, "e": str(queue_id)}
                ext |= {"f": "0", "g": "0", "h": "0", "i": "", "j": "0"}
                _ask(wire, RequestCode.SEND_MESSAGE_V2, ext, b"x")


def read_queues(port: int, queues: int) -> int:
    """How many of them give their message."""
    found = 0
    with Wire(f"127.0.0.1:{port}", timeout=60) as wire:
        for number in range(queues):
            name, queue_id = f"Q{number // QUEUES_OF_A_TOPIC}", str(number % QUEUES_OF_A_TOPIC)
            ext = {"consumerGroup": "g", "topic": name, "queueId": queue_id, "queueOffset": "0"}
            ext |= {"maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0", "subscription": "*"}
            ext |= {"suspendTimeoutMillis": "0", "subVersion": "0", "expressionType": "TAG"}
            found += wire.request(RequestCode.PULL_MESSAGE, ext).code == 0
    return found


def _ask(wire: Wire, code: int, ext: dict[str, str], body: bytes = b"") -> None:
    answer = wire.request(code, ext, body)
    if answer.code != 0:
        raise SystemExit(f"request {code} was refused: {answer.header.get('remark')}")


def many_queues(queues: int) -> int:
    folder = Path(tempfile.mkdtemp(prefix="aerobee-queues-"))
    broker = BrokerProcess(AEROBEE, folder, diskGuardEnable="false")
    counts = []
    try:
        broker.start()
        fill_queues(broker.port, queues)
        for _ in range(2):
            found = read_queues(broker.port, queues)
            counts.append((found, sample(broker, 0)))
            broker.stop()
            started = broker.start()
    finally:
        broker.kill()
        shutil.rmtree(folder)
    counts = "; ".join(
        f"{when} {found:,} of {queues:,} queues give their message, {of.files:,} open files, "
        f"{of.maps:,} maps, {of.anonymous_mb:.0f} MiB anonymous"
        for when, (found, of) in zip(("made:", "restarted:"), counts, strict=True)
    )
    print(f"{counts}; a start takes {started:.1f} s")
    return 0 if all(found == queues for found, _ in counts) else 1


def work(port: int, minutes: float) -> tuple[int, int]:
    """Rounds of sends and reads; how many of each."""
    until = time.monotonic() + minutes * 60
    sent = pulled = number = 0
    while time.monotonic() < until:
        topic = f"Load{number % 8}"
        count = 100_000
        sent += int(load("send", port, topic=topic, n=count, conns=4, window=32)["n"])
        found = load("pull", port, check=False, topic=topic, n=count, conns=4, max=32)
        pulled += int(found["n"])
        number += 1
    return sent, pulled


def slope(samples: Sequence[Sample]) -> float:
    """MiB a minute, of all but the first part."""
    warm = samples[int(len(samples) * WARM_SHARE) :]
    if len(warm) < 3:
        return 0.0
    line = statistics.linear_regression(
        [each.minute for each in warm], [each.anonymous_mb for each in warm]
    )
    return line.slope


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.memory", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--limit-mb", type=int, default=512)
    parser.add_argument("--queues", type=int, default=0)
    given = parser.parse_args(arguments)
    if given.queues:
        return many_queues(given.queues)
    folder = Path(tempfile.mkdtemp(prefix="aerobee-memory-"))
    broker = BrokerProcess(AEROBEE, folder, **SETTINGS)
    try:
        with memory_group(given.limit_mb) as group:
            try:
                samples, sent, pulled = loaded(broker, group, given)
                killed = kills(group)
            finally:
                broker.kill()  # a group goes once it is empty
    finally:
        shutil.rmtree(folder)
    return report(given, samples, sent, pulled, killed)


def loaded(
    broker: BrokerProcess, group: Path, given: argparse.Namespace
) -> tuple[list[Sample], int, int]:
    broker.start()
    (group / "cgroup.procs").write_text(str(broker.pid))
    watch = Watch(broker)
    watch.start()
    sent, pulled = work(broker.port, given.minutes)
    return watch.stop(), sent, pulled


def report(
    given: argparse.Namespace, samples: Sequence[Sample], sent: int, pulled: int, killed: int
) -> int:
    warm = samples[int(len(samples) * WARM_SHARE) :]
    grows = slope(samples)
    # A minute's figure says little: short runs are for trying the program out.
    failed = killed > 0 or (given.minutes >= 5 and grows >= SLOPE_MAX)
    print(
        f"{sent:,} sent and {pulled:,} read in {given.minutes:g} minutes in "
        f"{given.limit_mb} MiB: {killed} OOM kills; anonymous memory "
        f"{max(each.anonymous_mb for each in samples):.0f} MiB at most, {grows:+.2f} MiB a minute; "
        f"open files {max(each.files for each in warm)}, maps {max(each.maps for each in warm)} at "
        f"most"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
