"""Bugs to plant: each replaces one function of the store by what a hurried author might write.

The simulator must catch every one of them; `SEEDS` records a seed that does. They grade the
simulator: a bug that no seed catches means a check is missing. Where RocketMQ once had the bug its
number stands beside the name. Those of a start that does not come to its end: `mutants_start.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from crash.planted import Mutants
from crash.sim_disk import SimDisk

from aerobee.broker.store import opening, parts
from aerobee.broker.store.durability.flush_log import LogFlush
from aerobee.broker.store.durability.flush_queues import QueueFlush, QueueJob
from aerobee.broker.store.durability.log_job import LogJob
from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.files.mapped_file_queue import MappedFileQueue
from aerobee.broker.store.index.index_file import IndexFile
from aerobee.broker.store.lifecycle import Lifecycle
from aerobee.broker.store.log.commitlog import CommitLog
from aerobee.broker.store.log.pool_commit import PoolCommit
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.broker.store.recovery import queue_end, recovery
from aerobee.broker.store.recovery.plan import Plan, plan_recovery
from aerobee.broker.store.recovery.recovery import Recovery
from aerobee.protocol.files import record_scan as scan
from aerobee.protocol.files.crc import crc32_large
from aerobee.protocol.files.record_layout import CRC_MASK, CorruptRecord
from aerobee.protocol.json import fastjson

MUTANTS = Mutants()
mutant = MUTANTS.add


@mutant
def acknowledge_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogFlush, "sync", lambda self, job: job)


@mutant
def take_a_failed_sync_for_a_good_one_2706(patch: pytest.MonkeyPatch) -> None:
    real = LogFlush.sync

    def sync(self: LogFlush, job: LogJob) -> LogJob:
        real(self, job)
        job.error = None
        return job

    patch.setattr(LogFlush, "sync", sync)


@mutant
def try_a_failed_sync_again(patch: pytest.MonkeyPatch) -> None:
    def sync(self: LogFlush, job: LogJob) -> LogJob:
        for mapped in job.files:
            try:
                mapped.file.sync()
            except OSError:
                mapped.file.sync()
        return job

    patch.setattr(LogFlush, "sync", sync)


@mutant
def sync_only_the_last_file_1434(patch: pytest.MonkeyPatch) -> None:
    real = LogFlush.prepare

    def prepare(self: LogFlush, least_pages: int = 0) -> LogJob | None:
        job = real(self, least_pages)
        if job is not None:
            job.files = job.files[-1:]
        return job

    patch.setattr(LogFlush, "prepare", prepare)


@mutant
def trust_records_without_a_checksum(patch: pytest.MonkeyPatch) -> None:
    real = scan.check_record
    patch.setattr(scan, "check_record", lambda v, b, p, room, crc: real(v, b, p, room, False))


@mutant
def check_the_body_alone_7437(patch: pytest.MonkeyPatch) -> None:
    """The body's CRC says nothing of topic and properties."""

    def check(view: memoryview, offset: int, position: int, tail_at: int) -> None:
        body_crc = int.from_bytes(view[position + 8 : position + 12], "big")
        size = int.from_bytes(view[position + 84 : position + 88], "big")
        body = view[position + 88 : position + 88 + size]
        if crc32_large(body) & CRC_MASK != body_crc:
            raise CorruptRecord(offset, "the body does not match its CRC")

    patch.setattr(scan, "_check_tail", check)
    patch.setattr(scan, "_check_plain", lambda v, offset, *_: check(v, offset, offset - base(v), 0))


def base(view: memoryview) -> int:
    """The start of the file that a view maps: its first record says where it stands."""
    return int.from_bytes(view[28:36], "big")


@mutant
def leave_the_tail_behind_the_end_10666(patch: pytest.MonkeyPatch) -> None:
    def cut(self: MappedFile, position: int) -> None:
        self.set_positions(position)

    patch.setattr(MappedFile, "cut", cut)


@mutant
def claim_the_checkpoint_before_the_queues_678(patch: pytest.MonkeyPatch) -> None:
    def sync(self: QueueFlush, job: QueueJob) -> QueueJob:
        if job.checkpoint is not None:
            self._checkpoint.write(job.checkpoint)
        return job

    patch.setattr(QueueFlush, "sync", sync)


@mutant
def claim_what_is_dispatched_but_not_flushed_10073(patch: pytest.MonkeyPatch) -> None:
    real = QueueFlush._claim

    def claim(self: QueueFlush) -> Any:
        point = real(self)
        point.dispatched_offset = self._dispatcher.dispatched_offset
        return point

    patch.setattr(QueueFlush, "_claim", claim)


@mutant
def forget_to_sync_the_folder(patch: pytest.MonkeyPatch) -> None:
    real = SimDisk.syncdir

    def syncdir(self: SimDisk, path: str) -> None:
        if not path.endswith("commitlog"):
            real(self, path)

    patch.setattr(SimDisk, "syncdir", syncdir)


@mutant
def show_consumers_what_is_not_flushed_8239(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(parts, "safe_limit", lambda settings, log: lambda: log.max_offset)


@mutant
def keep_queue_entries_beyond_the_log(patch: pytest.MonkeyPatch) -> None:
    def recover(queue: ConsumeQueue, commit_log: CommitLog, limit: int | None) -> None:
        real(queue, commit_log, None)

    real = queue_end.recover_queue
    patch.setattr(recovery, "recover_queue", recover)
    patch.setattr(queue_end, "_agrees", lambda queue, commit_log, limit: True)


@mutant
def believe_every_queue_entry_7355(patch: pytest.MonkeyPatch) -> None:
    """After a power cut an entry may be there while one before it is not."""
    patch.setattr(queue_end, "_agrees", lambda queue, commit_log, limit: True)

    def plan(facts: Any) -> Plan:
        return replace(real_plan(facts), rebuild_queues_from=-1)

    real_plan = plan_recovery
    patch.setattr(recovery, "plan_recovery", plan)


@mutant
def skip_the_undispatched_tail_467(patch: pytest.MonkeyPatch) -> None:
    def catch_up(self: Recovery, plan: Plan, end: int) -> None:
        self._reput.start_at(end)
        self._reput.step()

    patch.setattr(Recovery, "_catch_up", catch_up)
    real = Recovery._scan
    patch.setattr(
        Recovery,
        "_scan",
        lambda self, plan: real(self, Plan(plan.mode, plan.reason, plan.scan_from)),
    )


@mutant
def write_no_abort_file(patch: pytest.MonkeyPatch) -> None:
    real = SimDisk.write_small

    def write_small(self: SimDisk, path: str, data: bytes) -> None:
        if not path.endswith("/abort"):
            real(self, path, data)

    patch.setattr(SimDisk, "write_small", write_small)


@mutant
def scan_without_a_sync_of_what_was_found(patch: pytest.MonkeyPatch) -> None:
    """What recovery shows must not vanish with the next cut."""

    def cut_log(self: Recovery, end: int, *, synced: bool) -> None:
        files = self._log.files
        files.remove_from(end if files.find(end) is None or end % files.file_size else end + 1)
        for file in files.files:
            if file.end > end:
                file.view[end - file.start :] = bytes(file.end - end)
                file.set_positions(end - file.start)
                file.allocated = 0
                file.allocate_to(file.size, file.size)
        self._log.flushed_offset = end

    patch.setattr(Recovery, "_cut_log", cut_log)


@mutant
def remove_the_oldest_file_first_2141(patch: pytest.MonkeyPatch) -> None:
    """Newest first keeps the names contiguous; the other way round leaves a hole."""

    def remove_from(self: MappedFileQueue, offset: int) -> None:
        gone = [file for file in self.files if file.start >= offset]
        for file in gone:
            self.files.remove(file)
            self.remove(file)
            self.disk.syncdir(self.folder)

    patch.setattr(MappedFileQueue, "remove_from", remove_from)


@mutant
def rewrite_json_in_place_9705(patch: pytest.MonkeyPatch) -> None:
    from crash import simulator

    def save(path: str, value: dict[Any, Any], *, disk: Any) -> None:
        disk.write_small(path, fastjson.dumps(value))
        disk.syncdir(path.rpartition("/")[0])

    patch.setattr(simulator, "save_json", save)


@mutant
def rename_json_and_sync_no_folder_9706(patch: pytest.MonkeyPatch) -> None:
    from crash import simulator

    def save(path: str, value: dict[Any, Any], *, disk: Any) -> None:
        disk.write_small(path + ".tmp", fastjson.dumps(value))
        disk.rename(path + ".tmp", path)

    patch.setattr(simulator, "save_json", save)


@mutant
def number_queues_from_zero_495(patch: pytest.MonkeyPatch) -> None:
    def number(self: Recovery) -> None:
        for queue in self._log.queues:
            queue.assigned = 0

    patch.setattr(Recovery, "_number_queues", number)


@mutant
def write_no_blank_record(patch: pytest.MonkeyPatch) -> None:
    def end_file(self: CommitLog, file: MappedFile) -> None:
        file.wrote = file.size

    patch.setattr(CommitLog, "_end_file", end_file)


@mutant
def leave_the_end_of_a_full_file_in_the_pool(patch: pytest.MonkeyPatch) -> None:
    def step(self: PoolCommit, least_pages: int = 0) -> bool:
        last = self._log.files.last
        if last is not None:
            last.commit()
        return True

    patch.setattr(PoolCommit, "step", step)


@mutant
def count_index_entries_that_were_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IndexFile, "count_below", lambda self, offset, count: count)


@mutant
def keep_the_index_as_it_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recovery, "_settle_index", lambda self, plan: None)


@mutant
def forget_the_index_at_the_stop_4463(patch: pytest.MonkeyPatch) -> None:
    real = QueueFlush.prepare

    def prepare(self: QueueFlush, *, thorough: bool) -> QueueJob | None:
        job = real(self, thorough=thorough)
        if job is not None:
            job.index = []
        return job

    patch.setattr(QueueFlush, "prepare", prepare)


@mutant
def recover_as_if_the_stop_was_clean(patch: pytest.MonkeyPatch) -> None:
    real = recovery.gather_facts
    patch.setattr(opening, "gather_facts", lambda s, c, i, p, clean: real(s, c, i, p, True))


@mutant
def remove_abort_although_the_flush_failed(patch: pytest.MonkeyPatch) -> None:
    real = Lifecycle._finish

    def finish(self: Lifecycle, _is_drained: bool) -> None:
        made = self._parts
        made.durability.flush.failed = made.durability.queue_flush.failed = False
        made.dispatch.dispatcher.dispatched_offset = made.files.commit_log.max_offset
        real(self, True)

    patch.setattr(Lifecycle, "_finish", finish)


@mutant
def go_on_writing_after_a_failed_sync(patch: pytest.MonkeyPatch) -> None:
    def fail(self: LogFlush, job: LogJob) -> None:
        self._log.flushed_offset = job.end  # the kernel says that the pages are clean now
        self.waiters._waiting.clear()

    patch.setattr(LogFlush, "_fail", fail)


@mutant
def believe_the_page_cache_after_a_failed_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recovery, "_write_again", lambda self, start, end: None)


@mutant
def trust_folders_that_a_killed_life_made(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(opening, "all_folders", lambda disk, folder: iter(()))
