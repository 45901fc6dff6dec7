"""A periodic self-check, every ten minutes: do the files still match what the store expects?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.store.files.disk import Disk
from aerobee.broker.store.files.mapped_file_queue import MappedFileQueue
from aerobee.broker.store.log.commitlog import CommitLog
from aerobee.broker.store.queues.consume_queue import ConsumeQueue

log = structlog.get_logger("aerobee.store")

FIRST_S: Final = 60.0
INTERVAL_S: Final = 600.0
TURN: Final = 16  # queues checked per turn of the loop


class SelfCheck:
    def __init__(self, disk: Disk, commit_log: CommitLog, clock: Clock) -> None:
        self._disk = disk
        self._log = commit_log
        self._clock = clock

    def step(self) -> list[str]:
        """The problems found, one sentence each; logged too."""
        return [sentence for found in self._by_part() for sentence in found]

    def _by_part(self) -> Iterator[list[str]]:
        """The problems of the log, then of each queue: there may be thousands of queues."""
        yield self._logged(self._problems_of_log())
        for queue in self._log.queues:
            yield self._logged(self._problems_of_queue(queue))

    def _logged(self, problems: Iterator[str]) -> list[str]:
        found = list(problems)
        for sentence in found:
            log.error("self-check", problem=sentence)
        return found

    def _problems_of_log(self) -> Iterator[str]:
        yield from self._problems_of(self._log.files)
        if self._log.flushed_offset > self._log.max_offset:
            yield (
                f"the commitlog is flushed to {self._log.flushed_offset}, beyond its end "
                f"{self._log.max_offset}"
            )

    def _problems_of_queue(self, queue: ConsumeQueue) -> Iterator[str]:
        yield from self._problems_of(queue.files)
        if queue.min_offset > queue.max_offset:
            yield (
                f"queue {queue.queue_id} of {queue.topic} begins at {queue.min_offset}, "
                f"after its end {queue.max_offset}"
            )

    def _problems_of(self, files: MappedFileQueue) -> Iterator[str]:
        for before, after in pairwise(files.files):
            if before.end != after.start:
                yield f"{files.folder} has a hole between {before.path} and {after.path}"
        for file in files.files:
            if not self._disk.exists(file.path):
                yield f"{file.path} was removed while the broker was running: restore it"
            elif self._disk.length(file.path) != file.size:
                length = self._disk.length(file.path)
                yield f"{file.path} is {length} bytes long, not {file.size}: it was changed"

    async def run(self) -> None:
        await self._clock.sleep(FIRST_S)
        while True:
            try:
                for number, _ in enumerate(self._by_part()):
                    if number % TURN == 0:
                        await asyncio.sleep(0)
            except OSError as error:
                log.error("self-check", problem=str(error))
            await self._clock.sleep(INTERVAL_S)
