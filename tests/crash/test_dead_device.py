"""A device that goes away under a running broker: it lives, reads answer, sends are refused.

The file system of a loop mount is shut down while messages are sent, pulled and looked up, and the
image behind it emptied; then the pages of the store's files are taken out of memory, as a busy
machine would do. What is not in memory any more can only be read from the device: an error answer,
and never a SIGBUS.

`make test-dead-device CUTS=6` makes so many cuts in each flush mode of each file system.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import shutil
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from peers.aerobee_broker import AerobeeBroker
from peers.tools import need_tools, wait_for
from peers.wire import Answer, Wire, pull_ext

from aerobee.protocol.files.record import decode_records

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a disk image"),
]

CUTS = int(os.environ.get("CUTS", "1"))
MAKE_FS = {
    "ext4": ["mkfs.ext4", "-q", "-m", "0"],
    "xfs": ["mkfs.xfs", "-q"],
}
SHUT_DOWN = 0x8004587D  # the same number for ext4 and xfs
WITHOUT_LOG_FLUSH = 2
PIDFD_GETFD = 438
PROCESS_MADVISE = 440
MADV_PAGEOUT = 21
SIZES = {
    "mappedFileSizeCommitLog": str(32 << 20),
    "mappedFileSizeConsumeQueue": "200000",
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
    "diskGuardEnable": "false",
}
QUEUES = 8


@contextmanager
def mounted(folder: Path, kind: str, options: str = "loop") -> Iterator[Path]:
    need_tools(MAKE_FS[kind][0])
    image, place = folder / "disk.img", folder / "disk"
    place.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(320 << 20)
    subprocess.run([*MAKE_FS[kind], str(image)], check=True)
    made = subprocess.run(["mount", "-o", options, str(image), str(place)], capture_output=True)
    if made.returncode:
        pytest.skip(f"no loop mounts of {kind} here: {made.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
        image.unlink()


def cut(place: Path) -> None:
    """The device is gone: nothing more is read or written."""
    folder = os.open(place, os.O_RDONLY)
    try:
        fcntl.ioctl(folder, SHUT_DOWN, struct.pack("I", WITHOUT_LOG_FLUSH))
    finally:
        os.close(folder)
    os.truncate(place.parent / "disk.img", 0)  # ext4 would still read


class _Range(ctypes.Structure):
    _fields_ = (("start", ctypes.c_uint64), ("length", ctypes.c_uint64))


def evict(pid: int, place: Path) -> int:
    """Take the pages of the store's files out of memory; how many maps there were."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    maps = [
        line.split()[0].split("-")
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
        if str(place) in line
    ]
    process = os.pidfd_open(pid)
    for begin, end in maps:
        start = int(begin, 16)
        wanted = _Range(start, int(end, 16) - start)
        call(PROCESS_MADVISE, process, ctypes.byref(wanted), 1, MADV_PAGEOUT, 0)
    for name in Path(f"/proc/{pid}/fd").iterdir():
        if str(place) in os.readlink(name):  # by its own descriptors: no file can be opened now
            descriptor = call(PIDFD_GETFD, process, int(name.name), 0)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
    os.close(process)
    return len(maps)


def send(wire: Wire, number: int) -> Answer:
    header = {
        "producerGroup": "PG",
        "topic": "Gone",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": str(QUEUES),
        "queueId": str(number % QUEUES),
        "sysFlag": "0",
        "bornTimestamp": "0",
        "flag": "0",
        "properties": f"KEYS\x01k{number}\x02TAGS\x01t{number % 3}\x02",
        "reconsumeTimes": "0",
        "unitMode": "false",
    }
    return wire.request(10, header, b"%08d" % number * 100)


def pull(wire: Wire, queue_id: int, offset: int, tag: str = "*", topic: str = "Gone") -> Answer:
    return wire.request(11, pull_ext(topic, queue_id, offset, subscription=tag))


def look_up(wire: Wire, number: int) -> Answer:
    times = {"beginTimestamp": "0", "endTimestamp": str(1 << 50)}
    return wire.request(12, {"topic": "Gone", "key": f"k{number}", "maxNum": "8", **times})


def by_time(wire: Wire, queue_id: int) -> Answer:
    fields = {"topic": "Gone", "queueId": str(queue_id), "timestamp": str(int(time.time() * 1000))}
    return wire.request(29, fields)


class Load:
    """Senders and readers, until they are stopped; a refused one continues."""

    def __init__(self, address: str) -> None:
        self.sent = 0
        self.refusals: list[str] = []
        self._address = address
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(work,), daemon=True)
            for work in (self._send, self._send, self._read)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, work: Callable[[Wire], None]) -> None:
        with suppress(OSError), Wire(self._address, 10) as wire:
            while not self._stopping.is_set():
                work(wire)

    def _send(self, wire: Wire) -> None:
        answer = send(wire, self.sent)
        self.sent += 1
        if answer.code != 0:
            self.refusals.append(answer.header.get("remark", ""))
            time.sleep(0.01)

    def _read(self, wire: Wire) -> None:
        pull(wire, random.randrange(QUEUES), max(0, self.sent // QUEUES - 50))
        look_up(wire, random.randrange(self.sent + 1))

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(20)


def signal_of(broker: AerobeeBroker) -> str:
    code = broker.exit_code()
    return "" if code is None else f"ended by {signal.Signals(-code).name if code < 0 else code}"


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_broker_outlives_its_device(tmp_path: Path, kind: str, flush: str) -> None:
    for number in range(CUTS):
        one_cut(tmp_path / str(number), kind, flush, random.uniform(0.3, 1.0))


def one_cut(folder: Path, kind: str, flush: str, after_s: float) -> None:
    with mounted(folder, kind) as place:
        settings = {**SIZES, "flushDiskType": flush, "storePathRootDir": str(place / "store")}
        with AerobeeBroker(folder / "run", **settings) as broker:
            load = Load(broker.broker)
            time.sleep(after_s)
            cut(place)
            evict(broker.pid, place)
            time.sleep(0.3)
            load.stop()
            assert load.sent > 20, "nothing was sent before the cut"
            with Wire(broker.broker, 10) as wire:
                check_alive(broker, wire, load)
                evict(broker.pid, place)
                errors = check_alive(broker, wire, load)
                assert any("Input/output error" in error for error in errors), errors
                refusal = str(
                    wait_for(
                        lambda: send(wire, 0).header.get("remark"),
                        timeout=15,
                        what="sends are refused",
                    )
                )
            assert "Input/output error" in refusal or "Structure needs cleaning" in refusal, refusal
            log = broker.log()
            assert "EIO" in log or "Input/output error" in log, "the log does not say why"
            assert "Traceback" not in log, log[log.index("Traceback") - 2000 :][:4000]
    shutil.rmtree(folder)


def turn_read_only(place: Path) -> None:
    """What ext4 does on its own when it finds an error on its device."""
    device = next(
        line.split()[0].rpartition("/")[2]
        for line in Path("/proc/mounts").read_text().splitlines()
        if line.split()[1] == str(place)
    )
    trigger = Path(f"/sys/fs/ext4/{device}/trigger_fs_error")
    if not trigger.exists():
        pytest.skip("this kernel's ext4 cannot be told to find an error")
    trigger.write_text("test")


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_file_system_that_turns_read_only_is_read_and_takes_sends_again_after_a_restart(
    tmp_path: Path, flush: str
) -> None:
    for number in range(CUTS):
        with mounted(tmp_path / str(number), "ext4", "loop,errors=remount-ro") as place:
            one_turn(tmp_path / str(number), place, flush)


def one_turn(folder: Path, place: Path, flush: str) -> None:
    settings = {**SIZES, "flushDiskType": flush, "storePathRootDir": str(place / "store")}
    with AerobeeBroker(folder / "run", **settings) as broker:
        load = Load(broker.broker)
        wait_for(lambda: load.sent > 200, timeout=60, what="messages are sent")
        turn_read_only(place)
        wait_for(lambda: load.refusals, timeout=30, what="sends are refused")
        load.stop()
        acknowledged = load.sent - len(load.refusals)  # the last ones may have no queue entry yet
        with Wire(broker.broker, 10) as wire:
            check_alive(broker, wire, load)
            evict(broker.pid, place)
            check_alive(broker, wire, load)
            assert sum(map(len, read_bodies(wire))) > 100
        assert "Read-only file system" in load.refusals[-1], load.refusals[-1]
        log = broker.log()
        assert "EROFS" in log or "Read-only file system" in log, "the log does not say why"
        assert "Traceback" not in log, log[log.index("Traceback") - 2000 :][:4000]
    subprocess.run(["umount", str(place)], check=True)
    image = str(folder / "disk.img")
    subprocess.run(["e2fsck", "-fy", image], capture_output=True, check=False)
    subprocess.run(["mount", "-o", "loop", image, str(place)], check=True)
    with AerobeeBroker(folder / "again", **settings) as broker, Wire(broker.broker, 10) as wire:
        found = sum(map(len, read_bodies(wire)))
        assert flush == "ASYNC_FLUSH" or found >= acknowledged
        assert send(wire, 0).code == 0


def read_bodies(wire: Wire) -> list[list[bytes]]:
    """The messages of every queue, in order; each queue has no gap."""
    found: list[list[bytes]] = []
    for queue_id in range(QUEUES):
        bodies: list[bytes] = []
        while (answer := pull(wire, queue_id, len(bodies))).code == 0:
            messages = list(decode_records(answer.body))
            offsets = [message.queue_offset for message in messages]
            assert offsets == list(range(len(bodies), len(bodies) + len(messages)))
            bodies += [bytes(message.body) for message in messages]
        found.append(bodies)
    return found


def check_alive(broker: AerobeeBroker, wire: Wire, load: Load) -> set[str]:
    """Every kind of request that reads the store's files, and some that write them; what reads
    were refused with."""
    answers: list[Answer] = []
    last = load.sent // QUEUES
    try:
        for queue_id in range(QUEUES):
            for offset in (0, last // 2, max(0, last - 10)):
                answers.append(pull(wire, queue_id, offset))
                answers.append(pull(wire, queue_id, offset, "t1"))
            answers.append(by_time(wire, queue_id))
        for number in range(0, load.sent, max(1, load.sent // 50)):
            answers.append(look_up(wire, number))
        for number in range(20):
            send(wire, number)
            time.sleep(0.02)
    except OSError as error:
        time.sleep(0.5)
        raise AssertionError(f"no answer ({error}); the broker: {signal_of(broker)}") from error
    assert signal_of(broker) == ""
    return {answer.header.get("remark") or "" for answer in answers if answer.code != 0}
