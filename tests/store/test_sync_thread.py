"""Group commit in C: what is handed over is synced, an error ends it, files stay open meanwhile."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from waiting import until

from aerobee.broker.base.clock import Clock
from aerobee.broker.compiled import hot
from aerobee.broker.store.durability.log_job import LogJob
from aerobee.broker.store.durability.sync_thread import SyncThread
from aerobee.broker.store.files.mapped_file import MappedFile, MappingCounters
from aerobee.broker.store.files.real_disk import RealDisk, RealFile
from aerobee.broker.store.results import PutStatus
from store.conftest import OpenStore, message

pytestmark = pytest.mark.skipif(hot is None, reason="this installation is pure Python")

SIZE = 4096


def mapped(file: RealFile, start: int = 0) -> MappedFile:
    return MappedFile(file, start, MappingCounters())


def real_file(folder: Path, start: int = 0) -> MappedFile:
    return mapped(RealDisk().create(str(folder / f"{start:020}"), SIZE), start)


def unsyncable_file(start: int = 0) -> tuple[MappedFile, int]:
    """A pipe cannot be synced: the system says EINVAL. The pipe's other end has to be closed."""
    other, end = os.pipe()
    return mapped(RealFile("pipe", SIZE, end), start), other


class Log:
    """Jobs that are there to be taken, and those that were completed."""

    def __init__(self) -> None:
        self.jobs: deque[LogJob] = deque()
        self.completed: list[LogJob] = []

    def take(self) -> LogJob | None:
        return self.jobs.popleft() if self.jobs else None

    def thread(self, complete: Callable[[LogJob], None] | None = None) -> SyncThread:
        return SyncThread(self.take, complete or self.completed.append)

    @property
    def ends(self) -> list[int]:
        return [job.end for job in self.completed]


async def test_jobs_of_many_files_are_completed_in_order(tmp_path: Path) -> None:
    log = Log()
    files = [real_file(tmp_path, number * SIZE) for number in range(20)]
    with log.thread() as thread:
        for file in files:
            log.jobs.append(LogJob([file], file.start + 1, 0))
            log.jobs.append(LogJob([file], file.end, 0))
            thread.wake()
        await until(lambda: bool(log.ends) and log.ends[-1] == files[-1].end)
    assert log.ends == sorted(log.ends)
    assert {file.end for file in files} <= set(log.ends)  # the last of each file is never left out
    assert all(job.error is None and job.took_ms > 0 for job in log.completed)
    for file in files:
        file.close()
        assert isinstance(file.file, RealFile) and file.file.use() is None  # and closed at once


async def test_a_failed_sync_is_reported_once_and_is_the_last(tmp_path: Path) -> None:
    log = Log()
    good, (bad, other) = real_file(tmp_path), unsyncable_file(SIZE)
    with log.thread() as thread:
        log.jobs.append(LogJob([good], good.end, 0))
        thread.wake()
        await until(lambda: log.ends == [good.end])
        log.jobs += [LogJob([bad], SIZE + end, 0) for end in (1, 2)]
        thread.wake()
        await until(lambda: len(log.completed) > 1)
        thread.wake()
        await asyncio.sleep(0)
    assert [job.error and job.error.errno for job in log.completed] == [None, errno.EINVAL]
    bad.close()
    os.set_blocking(other, False)
    assert os.read(other, 1) == b""  # the other end is closed
    os.close(other)


async def test_a_file_that_is_closed_while_its_sync_is_due_is_synced_first(tmp_path: Path) -> None:
    log = Log()
    file = real_file(tmp_path)
    thread = log.thread()
    log.jobs.append(LogJob([file], file.end, 0))
    thread.wake()
    file.close()
    with thread:
        await until(lambda: log.ends == [file.end])
    assert log.completed[0].error is None  # not EBADF


async def test_a_file_that_was_removed_needs_no_sync(tmp_path: Path) -> None:
    log = Log()
    file = real_file(tmp_path)
    file.close()
    with log.thread() as thread:
        log.jobs.append(LogJob([file], file.end, 0))
        thread.wake()
        await until(lambda: log.ends == [file.end])
    assert log.completed[0].error is None


async def test_an_answer_that_fails_keeps_no_other_from_being_given(tmp_path: Path) -> None:
    log = Log()
    failures: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: failures.append(str(context["exception"])))
    files = [real_file(tmp_path, number * SIZE) for number in range(2)]

    def complete(job: LogJob) -> None:
        log.completed.append(job)
        if job.files == files[:1]:
            raise RuntimeError("the peer is gone")

    with log.thread(complete) as thread:
        log.jobs += [LogJob([file], file.end, 0) for file in files]
        thread.wake()
        await until(lambda: len(log.completed) == 2)
    assert failures == ["the peer is gone"]


async def test_what_the_last_sync_has_finished_is_completed_after_the_end(tmp_path: Path) -> None:
    log = Log()
    file = real_file(tmp_path)
    with log.thread() as thread:
        log.jobs.append(LogJob([file], file.end, 0))
        thread.wake()
    assert log.ends == []
    await asyncio.sleep(0)
    assert log.ends == [file.end]
    file.close()


async def test_a_store_that_syncs_in_c_answers_over_many_files(open_store: OpenStore) -> None:
    store = open_store(flush_disk_type="SYNC_FLUSH", clock=Clock())
    await store.start()
    answers: list[PutStatus] = []

    def answered(count: int) -> bool:
        return len(answers) == count

    for number in range(40):  # of which each sixth begins a file
        [result] = store.put([message(body=bytes(10_000))])
        store.when_durable(result.end_offset, answers.append)
        await until(partial(answered, number + 1))
    assert answers == [PutStatus.PUT_OK] * 40
    assert len(store.commit_log.files.files) > 5
    assert store.commit_log.flushed_offset == store.max_physical_offset
    await store.stop()
