"""Opens a store, runs its coroutines and stops them in order."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import structlog

from aerobee.broker.base.worker import Worker
from aerobee.broker.store.opening import Opening
from aerobee.broker.store.parts import StoreParts
from aerobee.broker.store.recovery.recovery import Progress
from aerobee.broker.store.refusals import Cause

log = structlog.get_logger("aerobee.store")


class Lifecycle:
    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self.opening = Opening(parts)
        self._tasks: list[asyncio.Task[None]] = []
        self._flush_worker = Worker("aerobee-flush")
        self._queue_worker = Worker("aerobee-flush-queues")
        parts.base.refusals.set(Cause.SHUT_DOWN, "the store is not open")

    def load(self, progress: Progress | None, cut_to: int | None = None) -> None:
        self.opening.load(progress, cut_to)
        refusals = self._parts.base.refusals
        refusals.clear(Cause.SHUT_DOWN)
        if self._parts.base.settings.is_slave:
            refusals.set(
                Cause.SLAVE, "this broker is a slave (brokerRole=SLAVE): send to its master"
            )

    async def start(self) -> None:
        """Run the coroutines."""
        parts, reput, durability = self._parts, self._parts.dispatch.reput, self._parts.durability
        if parts.files.commit_log.files.files or not parts.base.settings.is_slave:
            parts.files.commit_log.prepare_first_file()  # an empty slave begins elsewhere
        if parts.files.ahead:
            parts.files.queues.first_files.start(ThreadPoolExecutor(1, "aerobee-queues"))
        if parts.files.prewrites:
            durability.prewriter.start()
        parts.clean.measure()
        reput.wake.set()
        runs = {
            "store.reput": reput.run(),
            "store.index": reput.run_late(),
            "store.flush": durability.flush.run(self._flush_worker),
            "store.flush-expiry": durability.flush.waiters.run_expiry(),
            "store.flush-queues": durability.queue_flush.run(self._queue_worker),
            "store.clean": parts.clean.run(self._queue_worker),
            "store.self-check": parts.self_check.run(),
        }
        if durability.commit is not None:
            runs["store.commit"] = durability.commit.run()
        if not self.opening.is_finished:
            runs["store.finish-start"] = self.opening.run_finish()
        self._tasks = [asyncio.create_task(run, name=name) for name, run in runs.items()]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Log a coroutine that failed, and refuse puts."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a coroutine of the store failed", task=task.get_name(), exc_info=error)
            self._parts.base.fence(
                f"{task.get_name()} failed ({error!r}); see the log, then restart"
            )

    async def stop(self) -> None:
        """Take no more puts; dispatch, commit and flush all; checkpoint; unlock."""
        durability = self._parts.durability
        flush, queue_flush = durability.flush, durability.queue_flush
        self._refuse_puts()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        durability.prewriter.stop()
        self._parts.files.maker.stop()
        self._parts.files.queues.first_files.stop()
        if durability.commit is not None:
            durability.commit.try_step()
        job = flush.prepare()
        if job is not None:
            flush.complete(await self._flush_worker.run(flush.sync, job))
        is_drained = self._parts.dispatch.reput.drain()
        if is_drained:
            queue_job = queue_flush.prepare(thorough=True)
            if queue_job is not None:
                queue_flush.complete(await self._queue_worker.run(queue_flush.sync, queue_job))
        self._flush_worker.stop()
        self._queue_worker.stop()
        self._finish(is_drained)

    def close(self) -> None:
        """As `stop`, synchronously: for a store whose coroutines were not started."""
        durability = self._parts.durability
        self._refuse_puts()
        self._parts.files.maker.stop()
        if durability.commit is not None:
            durability.commit.try_step()
        durability.flush.step()
        is_drained = self._parts.dispatch.reput.drain()
        if is_drained:
            durability.queue_flush.step(thorough=True)
        self._finish(is_drained)

    def _refuse_puts(self) -> None:
        self._parts.base.refusals.set(
            Cause.SHUT_DOWN, "the broker is shutting down: send to another one"
        )

    def _finish(self, is_drained: bool) -> None:
        """`is_drained`: queues and index have all that was dispatched."""
        abort, durability = self._parts.base.abort, self._parts.durability
        log_end = self._parts.files.commit_log.max_offset
        dispatched = self._parts.dispatch.dispatcher.dispatched_offset
        is_complete = is_drained and dispatched >= log_end
        is_flushed = not durability.flush.failed and not durability.queue_flush.is_unfinished
        if is_complete and is_flushed and self.opening.is_finished:
            self._note_clean_stop()
        else:
            log.warning("the stop is not clean: the next start checks the log", path=abort.path)
        self.opening.release()

    def _note_clean_stop(self) -> None:
        base = self._parts.base
        try:
            base.abort.remove()
        except OSError as error:
            event, then = "the stop cannot be noted as clean", "the next start checks the log"
            base.reports.disk_error(event, error, call="unlink", path=base.abort.path, then=then)
