"""Background jobs, such as a replay, with their progress."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

from aerobee.client.errors import AerobeeError, NotFound

log = logging.getLogger("aerobee.console")

KEPT: Final = 50


@dataclass(slots=True)
class Job:
    """The progress of a job; `refused`: those that can never succeed."""

    number: int
    what: str
    total: int
    done: int = 0
    state: str = "running"
    error: str = ""
    refused: list[str] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "job": self.number,
            "what": self.what,
            "total": self.total,
            "done": self.done,
            "state": self.state,
            "error": self.error,
            "refused": self.refused,
        }


class Jobs:
    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._numbers = itertools.count(1)

    def start(self, what: str, total: int, steps: AsyncIterator[str | None]) -> Job:
        job = Job(next(self._numbers), what, total)
        self._jobs[job.number] = job
        for old in list(self._jobs)[:-KEPT]:
            if self._jobs[old].state != "running":
                del self._jobs[old]
        job.task = asyncio.create_task(_run(job, steps), name=what)
        return job

    def get(self, number: int) -> Job:
        if number not in self._jobs:
            raise NotFound(f"there is no job {number}")
        return self._jobs[number]

    def stop(self, number: int) -> Job:
        job = self.get(number)
        if job.task is not None:
            job.task.cancel()
        return job

    async def close(self) -> None:
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(job: Job, steps: AsyncIterator[str | None]) -> None:
    try:
        async for problem in steps:
            job.done += 1
            job.refused += [problem] if problem else []
        job.state = "done"
    except asyncio.CancelledError:
        job.state = "stopped"
        raise
    except AerobeeError as error:
        job.state, job.error = "failed", str(error)
    except Exception as error:  # nobody awaits the task
        log.exception("job %d failed: %s", job.number, job.what)
        job.state = "failed"
        job.error = f"this is a bug of the console, see its log: {type(error).__name__}: {error}"
