"""The bugs of test_rmq_log and test_rmq_files, to be planted: by RocketMQ's issue number.

Each puts back, in place of one of our functions, what the issue reports. Those that the power-loss
simulator plants too are taken from its list.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from crash.mutants import MUTANTS
from crash.sim_disk import SimDisk

from aerobee.broker.services.config_files import json_file
from aerobee.broker.store.durability.flush_log import LogFlush
from aerobee.broker.store.durability.log_job import LogJob
from aerobee.broker.store.errors import StoreError
from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.files.real_disk import RealDisk
from aerobee.broker.store.index import key_search
from aerobee.broker.store.index.index_file import IndexFile
from aerobee.broker.store.log.commitlog import CommitLog
from aerobee.broker.store.queues import queue_start
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.broker.store.reading.read import Reader
from aerobee.broker.store.recovery import queue_end, recovery
from aerobee.broker.store.recovery.plan import Plan, RecoveryFacts, plan_recovery
from aerobee.broker.store.recovery.recovery import Recovery
from aerobee.broker.store.results import PutStatus
from aerobee.broker.store.retention import clean
from aerobee.broker.store.settings import StoreSettings
from aerobee.protocol.files import record_scan as scan
from aerobee.protocol.files.index_layout import INDEX_ENTRY
from aerobee.protocol.files.queue_entry import ENTRY
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.json import fastjson

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
FAILURES = (AssertionError, CorruptRecord, StoreError, OSError, ValueError, struct.error)


def start_at_the_end(patch: Patch) -> None:
    """#405: dispatch begins at the log's end, whatever the queues have."""

    def catch_up(self: Recovery, plan: Plan, end: int) -> None:
        self._reput.start_at(end)
        self._reput.step()

    patch.setattr(Recovery, "_catch_up", catch_up)


def only_the_last_file(patch: Patch) -> None:
    """#1434: queues are rebuilt from the last log file alone."""

    def plan(facts: RecoveryFacts) -> Plan:
        start = facts.files[-1].start if facts.files else 0
        found = plan_recovery(facts)
        return replace(found, scan_from=start, dispatch_from=start) if facts.files else found

    patch.setattr(recovery, "plan_recovery", plan)


def leave_cut_entries(patch: Patch) -> None:
    """#495: a cut moves the queue's end and leaves the entries, for the next start to believe."""
    patch.setattr(queue_end, "_agrees", lambda queue, commit_log, limit: True)
    real = MappedFile.cut

    def cut(self: MappedFile, position: int) -> None:
        if "consumequeue" in self.path:
            self.set_positions(position)
        else:
            real(self, position)

    patch.setattr(MappedFile, "cut", cut)


def believe_any_place(patch: Patch) -> None:
    """#10017: a record's own offset is not checked."""
    real = scan.check_record

    def check(view: memoryview, base: int, position: int, room: int, crc: bool) -> scan.Scanned:
        stored = int.from_bytes(view[position + 28 : position + 36], "big", signed=True)
        record = real(view, stored - position, position, room, crc)
        return record._replace(physical_offset=base + position)

    patch.setattr(scan, "check_record", check)


def no_checksum_when_0(patch: Patch) -> None:
    """#9121: a checksum of 0 is taken for none."""
    real = scan._check_plain

    def check(view: memoryview, offset: int, at: int, size: int, crc: int, *rest: int) -> None:
        if crc:
            real(view, offset, at, size, crc, *rest)

    patch.setattr(scan, "_check_plain", check)


def time_only_for_those_who_wait(patch: Patch) -> None:
    """#7233: a flush that nobody waits for leaves the checkpoint's time alone."""
    real = LogFlush.complete

    def complete(self: LogFlush, job: LogJob) -> None:
        before = self.flushed_timestamp
        waited = len(self.waiters)
        real(self, job)
        if not waited:
            self.flushed_timestamp = before

    patch.setattr(LogFlush, "complete", complete)


def one_file_a_flush(patch: Patch) -> None:
    """#3408: a flush covers one file; waiters on the next one get a timeout."""
    real_prepare, real_complete = LogFlush.prepare, LogFlush.complete

    def prepare(self: LogFlush, least_pages: int = 0) -> LogJob | None:
        job = real_prepare(self, least_pages)
        if job is not None:
            job.files = job.files[:1]
            job.end = min(job.end, job.files[0].end)
        return job

    def complete(self: LogFlush, job: LogJob) -> None:
        real_complete(self, job)
        waiting = self.waiters._waiting
        while waiting:
            waiting.popleft()[2](PutStatus.FLUSH_DISK_TIMEOUT)

    patch.setattr(LogFlush, "prepare", prepare)
    patch.setattr(LogFlush, "complete", complete)


def pool_before_the_disk(patch: Patch) -> None:
    """#7523: synced sends go to the pool as well, where no flush finds them."""
    patch.setattr(StoreSettings, "pool_enabled", property(lambda self: True))


def look_into_an_empty_file(patch: Patch) -> None:
    """#9728: the first entry of the last file is read though there is none."""

    def correct(queue: ConsumeQueue, min_physical_offset: int) -> None:
        last = queue.files.last
        if last is not None:
            ENTRY.unpack(queue.entries(last.start // 20, 1))

    patch.setattr(queue_start, "correct_min_offset", correct)


def keep_the_begin(patch: Patch) -> None:
    """#10417: a cut forgets the queue's begin."""
    real = ConsumeQueue.cut

    def cut(self: ConsumeQueue, queue_offset: int) -> None:
        before = self.min_offset
        real(self, queue_offset)
        self.min_offset = before

    patch.setattr(ConsumeQueue, "cut", cut)


def correct_only_after_a_removal(patch: Patch) -> None:
    """#8753: a queue that loses no file keeps its begin."""
    patch.setattr(queue_start, "begins_before", lambda queue, offset: False)


def _dropping(patch: Patch, choose: Callable[[tuple[int, ...]], tuple[int, ...]]) -> None:
    def plan(facts: RecoveryFacts) -> Plan:
        numbers = tuple(file.number for file in facts.index_files)
        found = plan_recovery(facts)
        return found if facts.clean else replace(found, drop_index=choose(numbers), cut_index=None)

    patch.setattr(recovery, "plan_recovery", plan)


def drop_index_files(patch: Patch) -> None:
    """#8007: index files are dropped, and only what is new is indexed again."""
    _dropping(patch, lambda numbers: numbers)


def drop_the_last_index_file(patch: Patch) -> None:
    """#3868: the last index file always counts as later than the checkpoint."""
    _dropping(patch, lambda numbers: numbers[-1:])


def follow_any_chain(patch: Patch) -> None:
    """#8018: a chain is followed wherever it leads."""

    def find(self: IndexFile, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        number = self._newest_of(key_hash % self.slots)
        while number > 0:
            entry = INDEX_ENTRY.unpack(self.file.read(self._position(number), 20))
            if entry[0] == key_hash:
                yield entry[1]
            number = entry[3]

    patch.setattr(IndexFile, "find", find)


def believe_the_hash(patch: Patch) -> None:
    """#3613: what has the key's hash is taken to have the key."""

    def with_key(commit_log: CommitLog, offset: int, *_: object) -> memoryview | None:
        return Reader(commit_log, 0, 0).record_at(offset)

    patch.setattr(key_search, "_with_key", with_key)


def write_into_holes(patch: Patch) -> None:
    """#3511: blocks come when a page is first stored to."""

    def allocate_to(self: MappedFile, position: int, chunk: int) -> None:
        self.allocated = max(self.allocated, position)

    patch.setattr(MappedFile, "allocate_to", allocate_to)


def rewrite_in_place(patch: Patch) -> None:
    """#9705: the file is overwritten, so for a moment there is none."""

    def save(path: str, value: dict[Any, Any], *, disk: Any) -> None:
        disk.write_small(path, fastjson.dumps(value))
        disk.syncdir(os.path.dirname(path))

    patch.setattr(json_file, "save_json", save)


def write_over_the_old_text(patch: Patch) -> None:
    """#9328: the old text is not cut off where the new one ends."""

    def write_small(self: RealDisk, path: str, data: bytes) -> None:
        with open(path, "r+b" if os.path.exists(path) else "wb") as file:
            file.write(data)

    patch.setattr(RealDisk, "write_small", write_small)


def insist_on_the_file(patch: Patch) -> None:
    """#3401: a file that cannot be read ends the start."""

    def read(disk: Any, path: str, _strict: bool) -> tuple[Any, str, bytes]:
        data = disk.read_small(path)
        return fastjson.loads(data), "", data

    patch.setattr(json_file, "_read", read)


def round_times_down(patch: Patch) -> None:
    """#5174: the whole second of an entry is taken for its time."""
    real = key_search._with_key

    def with_key(log: CommitLog, offset: int, topic: str, key: str, *rest: Any) -> Any:
        begin_ms, end_ms, unique = rest
        view = real(log, offset, topic, key, 0, 2**62, unique)
        if view is None:
            return None
        stored_ms = int.from_bytes(view[56:64], "big") // 1000 * 1000
        return view if begin_ms <= stored_ms <= end_ms else None

    patch.setattr(key_search, "_with_key", with_key)


def leave_the_index_file(patch: Patch) -> None:
    """#7539: an index file that could not be prepared stays, and the next try makes another."""
    patch.setattr(SimDisk, "unlink", lambda self, path: None)


def drop_the_file_that_was_not_removed(patch: Patch) -> None:
    """#7283: the file is taken out of the list though it is still there."""
    patch.setattr(clean, "_settled", lambda chosen, removed: removed)


LOG_BUGS: dict[int, Plant] = {
    467: MUTANTS["skip_the_undispatched_tail_467"],
    405: start_at_the_end,
    1434: only_the_last_file,
    495: leave_cut_entries,
    10666: MUTANTS["leave_the_tail_behind_the_end_10666"],
    10017: believe_any_place,
    7437: MUTANTS["check_the_body_alone_7437"],
    9121: no_checksum_when_0,
    678: MUTANTS["claim_the_checkpoint_before_the_queues_678"],
    10073: MUTANTS["claim_what_is_dispatched_but_not_flushed_10073"],
    7233: time_only_for_those_who_wait,
    2706: MUTANTS["take_a_failed_sync_for_a_good_one_2706"],
    3408: one_file_a_flush,
    7523: pool_before_the_disk,
    8239: MUTANTS["show_consumers_what_is_not_flushed_8239"],
}
FILE_BUGS: dict[int, Plant] = {
    7355: MUTANTS["believe_every_queue_entry_7355"],
    9728: look_into_an_empty_file,
    10417: keep_the_begin,
    8753: correct_only_after_a_removal,
    8007: drop_index_files,
    3868: drop_the_last_index_file,
    8018: follow_any_chain,
    3613: believe_the_hash,
    4463: MUTANTS["forget_the_index_at_the_stop_4463"],
    3511: write_into_holes,
    2141: MUTANTS["remove_the_oldest_file_first_2141"],
    9705: rewrite_in_place,
    9328: write_over_the_old_text,
    3401: insist_on_the_file,
    5174: round_times_down,
    358: MUTANTS["believe_every_queue_entry_7355"],
    7539: leave_the_index_file,
    7283: drop_the_file_that_was_not_removed,
}


def story_of(number: int, tests: dict[str, Any]) -> Callable[..., None]:
    """The test that tells the issue of this number."""
    (story,) = (test for name, test in tests.items() if name.startswith(f"test_rmq_{number}_"))
    told: Callable[..., None] = story
    return told
