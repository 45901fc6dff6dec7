"""config/timercheck, upstream's page of 4096 bytes: the progress of the timers that is durable.

It never covers more than the store has on disk. At byte 256 is our mark, an offset of the store's
log: the page counts the copies of timers before it; a start finds the later ones (`origins`). After
it come the last time of a clock that was far ahead (`far`), and the ranges that were done before a
clock was set back (`passed`): their number, then for each the first second, the one after the last,
and a position in the timer log. A checksum covers all of it and the page: a page that a Java broker
has written has no valid mark. Ranges that do not fit the first sector follow it, with a checksum of
their own. A power failure may tear these: timers may then be delivered again after a clock was set
back nine times or more.
"""

import asyncio
import os
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.wake import Wake
from aerobee.broker.services.timers.passed import Passed
from aerobee.broker.store.files.disk import DiskFile, make_folder

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

_PAGE: Final = 4096
_FIELDS: Final = Struct(">7q")
_MARK_AT: Final = 256
_MARK: Final = Struct(">qqi")  # place in the log, the old clock, number of ranges
_RANGE: Final = Struct(">qqq")
_CRC_SIZE: Final = 4  # covers the fields, the mark and the ranges
_RANGES_MAX: Final = 8  # all of it in one sector
_COUNT: Final = Struct(">i")
_COUNT_AT: Final = _MARK_AT + 16
_SECTOR: Final = 512
_REST_MAX: Final = (_PAGE - _SECTOR - _COUNT.size - _CRC_SIZE) // _RANGE.size

log = structlog.get_logger("aerobee.timers")


class TimerCheckpoint(NamedTuple):
    """The fields, in their order."""

    read_ms: int = 0  # the first second that is not done
    log_end: int = 0  # of the timer log
    queue_offset: int = 0  # the next message of rmq_sys_wheel_timer
    master_queue_offset: int = 0
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


class Reached(NamedTuple):
    """Progress of the timers; valid once the store's log is on disk up to `store_end`."""

    store_end: int
    mark: int  # see above
    old_clock_ms: int
    passed: tuple[Passed, ...]
    read_ms: int
    log_end: int
    queue_offset: int


class Checkpoints:
    """Writes the page shortly after each change."""

    def __init__(
        self,
        path: str,
        store: "MessageStore",
        sync: Callable[[], None],
        reached: Callable[[], Reached],
        clock: Clock,
    ) -> None:
        self.path = path
        self._store = store
        self._sync = sync
        self._reached = reached
        self._clock = clock
        self._file: DiskFile | None = None
        self._waiting: Reached | None = None
        self.point = TimerCheckpoint()
        self.mark: int | None = None
        self.old_clock_ms = 0
        self.passed: tuple[Passed, ...] = ()
        self.dirty = Wake()
        self.rounds_begun = 0  # of syncs
        self.rounds_done = 0  # the last finished one: all that was written before it is on disk

    def load(self) -> TimerCheckpoint:
        disk = self._store.disk
        page = disk.read_small(self.path)[:_PAGE] if disk.exists(self.path) else b""
        page = self._whole(page)
        if len(page) >= _FIELDS.size:
            self.point = TimerCheckpoint(*_FIELDS.unpack_from(page))
        end = _end_of_marks(page)
        if end is not None:
            self.mark, self.old_clock_ms, _ = _MARK.unpack_from(page, _MARK_AT)
            ranges = self._rest_of(page, page[end : end + _CRC_SIZE])
            ranges += page[_MARK_AT + _MARK.size : end]
            self.passed = tuple(map(Passed._make, _RANGE.iter_unpack(ranges)))
        return self.point

    def _whole(self, page: bytes) -> bytes:
        """The page, with one flipped bit repaired if it then matches its checksum."""
        if len(page) < _PAGE or _end_of_marks(page) is not None or not any(page[_MARK_AT:]):
            return page
        for bit in range(_SECTOR * 8):
            mended = bytearray(page)
            mended[bit // 8] ^= 1 << bit % 8
            if _end_of_marks(mended) is not None:
                log.warning("a flipped bit was found and repaired", path=self.path, bit=bit)
                return bytes(mended)
        log.warning(
            "the timers' checkpoint does not match its checksum: a Java broker has written it, or "
            "it is damaged; it is used as it is",
            path=self.path,
        )
        return page

    def _rest_of(self, page: bytes, checksum: bytes) -> bytes:
        """The ranges that do not fit the first sector."""
        (count,) = _COUNT.unpack_from(page, _SECTOR)
        end = _SECTOR + _COUNT.size + _RANGE.size * count
        if not 0 <= count <= _REST_MAX or (
            count and page[end : end + _CRC_SIZE] != _checksum(checksum + page[_SECTOR:end])
        ):
            log.warning(
                "the timers' progress before the clock was set back is partly damaged: some may be "
                "delivered again",
                path=self.path,
            )
            return b""
        return page[_SECTOR + _COUNT.size : end]

    async def run(self, interval_s: float) -> None:
        """Write within `interval_s` of a change, until cancelled."""
        while True:
            await self.dirty.wait()
            await self._clock.sleep(interval_s)
            self.rounds_begun += 1
            try:
                reached = self._reached()
                await asyncio.to_thread(self._sync)
                self.rounds_done = self.rounds_begun
                self.save_durable(reached)
            except OSError as error:
                self.note_refused(error)

    def note_refused(self, error: OSError) -> None:
        """The disk refuses the timers' files: log it and retry later."""
        self._store.reports.disk_error(
            "timers cannot be written to disk",
            error,
            call="sync",
            path=self.path,
            then="retried with the next round; timers that are set meanwhile are in the log",
        )
        self.dirty.set()

    def step(self) -> None:
        """One round of `run`, at once."""
        reached = self._reached()
        self.rounds_begun += 1
        self._sync()
        self.rounds_done = self.rounds_begun
        self.save_durable(reached)

    def save_durable(self, reached: Reached) -> bool:
        """Save the newest progress that is durable; the rest in the next round. Whether this is
        durable."""
        flushed = self._store.flushed_offset
        for known in (self._waiting, reached):
            if known is not None and known.store_end <= flushed:
                self.save(known)
        self._waiting = None
        if reached.store_end > flushed:
            self._waiting = reached
            self.dirty.set()
        return self._waiting is None

    def save(self, reached: Reached) -> None:
        """One write; its first sector is written whole or not at all."""
        point = TimerCheckpoint(
            reached.read_ms,
            reached.log_end,
            reached.queue_offset,
            reached.queue_offset,
            self.point.state_version,
            self._clock.now_ms(),
            self.point.counter + 1,
        )
        passed = [_RANGE.pack(*each) for each in reached.passed[-_RANGES_MAX - _REST_MAX :]]
        rest, ranges = passed[:-_RANGES_MAX], passed[-_RANGES_MAX:]
        mark = _MARK.pack(reached.mark, reached.old_clock_ms, len(ranges))
        page = _FIELDS.pack(*point).ljust(_MARK_AT, b"\0") + mark + b"".join(ranges)
        checksum = _checksum(page)
        page = (page + checksum).ljust(_SECTOR, b"\0")
        tail = _COUNT.pack(len(rest)) + b"".join(rest)
        file = self._open()
        file.write(0, page + tail + _checksum(checksum + tail))
        file.sync()
        self.point, self.mark, self.passed = point, reached.mark, reached.passed

    def _open(self) -> DiskFile:
        if self._file is None:
            disk, folder = self._store.disk, os.path.dirname(self.path)
            make_folder(disk, folder)
            is_there = disk.exists(self.path)
            file = disk.open(self.path) if is_there else disk.create(self.path, _PAGE)
            if file.size < _PAGE:  # left by a kill
                file.extend(_PAGE)
            file.allocate(0, _PAGE)
            disk.syncdir(folder)
            self._file = file
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def take_over(self, page: bytes, mark: int) -> None:
        """On a slave: take over the master's progress. Its own timer log stays empty: once it is a
        master itself, it reads the pending timers from the store."""
        point = TimerCheckpoint(*_FIELDS.unpack_from(page))
        if (point.read_ms, mark) != (self.point.read_ms, self.mark):
            self.save(Reached(0, mark, 0, (), point.read_ms, point.log_end, point.queue_offset))

    def encode(self) -> bytes:
        """In the form of the file and of GET_TIMER_CHECK_POINT."""
        return _FIELDS.pack(*self.point)


def _end_of_marks(page: bytes | bytearray) -> int | None:
    """Where our marks end; None: the page has none."""
    if len(page) < _PAGE:
        return None
    count = int.from_bytes(page[_COUNT_AT : _COUNT_AT + 4], "big", signed=True)
    end = _MARK_AT + _MARK.size + _RANGE.size * count
    if not 0 <= count <= _RANGES_MAX or page[end : end + _CRC_SIZE] != _checksum(page[:end]):
        return None
    return end


def _checksum(page: bytes | bytearray) -> bytes:
    return crc32(page).to_bytes(_CRC_SIZE, "big")
