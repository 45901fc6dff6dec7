"""Builds the parts of a store and connects them. No part imports this file: each is given what it
needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from aerobee.broker.base.clock import Clock
from aerobee.broker.store.base import StoreBase, build_base
from aerobee.broker.store.dispatch.dispatcher import RecordDispatcher
from aerobee.broker.store.dispatch.reput import Reput
from aerobee.broker.store.durability.checkpoint import CheckpointFile
from aerobee.broker.store.durability.flush_log import LogFlush
from aerobee.broker.store.durability.flush_queues import QueueFlush
from aerobee.broker.store.durability.self_check import SelfCheck
from aerobee.broker.store.files.disk import Disk
from aerobee.broker.store.files.real_disk import RealDisk
from aerobee.broker.store.index.index_service import IndexService
from aerobee.broker.store.log.allocate import FileMaker
from aerobee.broker.store.log.commitlog import CommitLog
from aerobee.broker.store.log.pool_commit import PoolCommit
from aerobee.broker.store.log.prewrite import Prewriter
from aerobee.broker.store.log.transient_store_pool import TransientStorePool
from aerobee.broker.store.queues.listeners import ArrivalListeners
from aerobee.broker.store.queues.queue_table import QueueTable
from aerobee.broker.store.reading.read import Reader
from aerobee.broker.store.recovery.recovery import rebuild_derived
from aerobee.broker.store.retention.clean import Clean
from aerobee.broker.store.settings import StoreSettings

FOREVER: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """The log and what is derived from it."""

    commit_log: CommitLog
    queues: QueueTable
    index: IndexService | None
    listeners: ArrivalListeners
    maker: FileMaker
    ahead: bool  # files are created in threads before they are needed
    prewrites: bool  # blocks of the log are written before they are needed
    pool: TransientStorePool | None

    def close(self) -> None:
        self.commit_log.files.close()
        self.queues.close()
        if self.index is not None:
            self.index.close()


@dataclass(slots=True)
class Confirmed:
    """With an arbiter: the end of what no failover rolls back."""

    end: int = FOREVER


@dataclass(frozen=True, slots=True)
class StoreDispatch:
    """From the log to the queues."""

    visible_limit: Callable[[], int]
    safe_limit: Callable[[], int]  # the same without the arbiter's limit
    confirmed: Confirmed
    dispatcher: RecordDispatcher
    reput: Reput


@dataclass(frozen=True, slots=True)
class StoreDurability:
    """From memory to the disk."""

    flush: LogFlush
    queue_flush: QueueFlush
    checkpoint: CheckpointFile
    commit: PoolCommit | None
    prewriter: Prewriter


@dataclass(frozen=True, slots=True)
class StoreParts:
    base: StoreBase
    files: StoreFiles
    dispatch: StoreDispatch
    durability: StoreDurability
    clean: Clean
    self_check: SelfCheck
    reader: Reader


def build_parts(
    settings: StoreSettings, clock: Clock, disk: Disk | None, ahead: bool | None
) -> StoreParts:
    base = build_base(settings, clock, RealDisk() if disk is None else disk)
    files = build_files(base, isinstance(base.disk, RealDisk) if ahead is None else ahead)
    dispatch = build_dispatch(base, files)
    durability = build_durability(base, files, dispatch)
    return StoreParts(
        base,
        files,
        dispatch,
        durability,
        Clean(
            settings,
            base.disk,
            files.commit_log,
            files.index,
            base.refusals,
            clock,
            lambda: durability.checkpoint.value.dispatched_offset,
            durability.queue_flush.expedite,
            base.reports,
            base.trusted_time,
        ),
        SelfCheck(base.disk, files.commit_log, clock),
        Reader(
            files.commit_log,
            settings.max_filter_message_size,
            settings.access_message_in_memory_max_ratio,
        ),
    )


def build_files(base: StoreBase, ahead: bool) -> StoreFiles:
    settings, disk, counters = base.settings, base.disk, base.counters
    size = settings.mapped_file_size_commit_log
    pool = None
    if settings.pool_enabled:
        pool = TransientStorePool(settings.transient_store_pool_size, size)
    listeners = ArrivalListeners()
    queues = QueueTable(settings, disk, counters, base.unsynced, listeners, base.reports)
    prewrites = ahead and settings.prewrites
    maker = FileMaker(
        disk,
        settings.layout.commitlog,
        size,
        ahead=ahead,
        prewrite=prewrites,
        ready=settings.readies,
    )
    commit_log = CommitLog(settings, disk, counters, queues, maker, pool, base.reports)
    index = None
    if settings.message_index_enable:
        index = IndexService(settings, disk, counters, base.unsynced, base.clock.now_ms)
    return StoreFiles(commit_log, queues, index, listeners, maker, ahead, prewrites, pool)


def safe_limit(settings: StoreSettings, commit_log: CommitLog) -> Callable[[], int]:
    """The end of what a crash cannot lose, in this flush mode."""
    if settings.sync_flush:
        return lambda: commit_log.flushed_offset
    if settings.pool_enabled:
        return lambda: commit_log.committed_offset
    return lambda: commit_log.max_offset


def build_dispatch(base: StoreBase, files: StoreFiles) -> StoreDispatch:
    log, index = files.commit_log, files.index
    safe, confirmed = safe_limit(base.settings, log), Confirmed()
    limit = safe
    if base.settings.has_arbiter:
        limit = lambda: min(safe(), confirmed.end)  # noqa: E731
    dispatcher = RecordDispatcher(base, log, index, files.listeners)
    reput = Reput(base, log, index, dispatcher, limit)
    return StoreDispatch(limit, safe, confirmed, dispatcher, reput)


def build_durability(
    base: StoreBase, files: StoreFiles, dispatch: StoreDispatch
) -> StoreDurability:
    settings, log, reput = base.settings, files.commit_log, dispatch.reput
    prewriter = Prewriter(log.files, ready=not settings.write_without_mmap)
    flush = LogFlush(base, log, prewriter, reput.flushed)
    checkpoint = CheckpointFile(base.disk, settings.layout.checkpoint)
    queue_flush = QueueFlush(
        base,
        log,
        files.index,
        dispatch.dispatcher,
        flush,
        checkpoint,
        partial(rebuild_derived, settings, log, files.index, reput, checkpoint),
    )
    commit = None
    if files.pool is not None:

        def on_committed() -> None:
            flush.wake.set()
            reput.wake.set()

        commit = PoolCommit(base, log, files.pool, on_committed)
    return StoreDurability(flush, queue_flush, checkpoint, commit, prewriter)
