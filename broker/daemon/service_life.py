"""The store and the services on it: loaded, started, stopped and saved in the right order."""

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from aerobee.broker.auth.model import AccessError
from aerobee.broker.ha.config_sync import add_unknown_topics
from aerobee.broker.ha.cut import forget_timer_log, take_back_progress
from aerobee.broker.handlers.context import Broker
from aerobee.broker.net.listening import StartError
from aerobee.broker.services.config_files.classes import without_class
from aerobee.broker.services.config_files.table_file import QUIET_S
from aerobee.broker.services.transactions.checks import TransactionChecks
from aerobee.broker.store.errors import StoreError

log = structlog.get_logger("aerobee.app")


class ServiceLife:
    """What of a broker works without a socket."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._settings = broker.settings
        self._checks = TransactionChecks(
            broker.transactions, broker.clients, broker.settings, broker.clock
        )
        self._files = {
            "topics": broker.topics.file,
            "groups": broker.groups.file,
            "offsets": broker.offsets.file,
            "filters": broker.filters.file,
            "why": broker.history.file,
            "kv config": broker.name_service.kv.file,
        }
        self._tasks: list[asyncio.Task[None]] = []
        self.failed = ""  # a part that ended by a mistake of ours

    # --- start

    def make_folder(self) -> None:
        root = self._settings.store_path_root_dir
        try:
            os.makedirs(root, exist_ok=True)
        except OSError as error:
            raise StartError(
                f"the store's folder {root} cannot be made: {error.strerror}; "
                "choose another with --set storePathRootDir=FOLDER"
            ) from error
        if not os.access(root, os.W_OK | os.X_OK):
            raise StartError(
                f"the store's folder {root} cannot be written by this user; give it to the user "
                "that runs the broker, or choose another with --set storePathRootDir=FOLDER"
            )

    def load(
        self,
        progress: Callable[[int, int], None],
        opened: Callable[[], None] = lambda: None,
        cut_to: int | None = None,
        promoted: bool = False,
    ) -> None:
        """Recover the store and read what the services have kept; may take long. `opened` is called
        in between; `cut_to`: let the log end here; `promoted`: a slave becomes the master."""
        broker = self._broker
        try:
            broker.guard.load()
        except AccessError as error:
            raise StartError(str(error)) from error
        try:
            if cut_to is not None:
                store = broker.store
                take_back_progress(store.settings, self._settings, broker.clock, store.disk, cut_to)
            broker.store.load(progress, cut_to)
        except StoreError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno == errno.ENOSPC:
                raise StartError(
                    f"there is no space left on the disk of {self._settings.store_path_root_dir}; "
                    "free some, or choose another folder with --set storePathRootDir=FOLDER"
                ) from error
            raise
        try:
            opened()
            self._load_services(promoted)
        except OSError as error:
            self._close_store()
            raise StoreError(
                f"the configuration in {broker.store.settings.layout.config} cannot be used: "
                f"{error}; check the permissions there, and the disk"
            ) from error
        except Exception:  # a mistake of ours too: the next start needs the folder
            self._close_store()
            raise

    def _close_store(self) -> None:
        """Of a start that has failed. After an unclean stop the next one has to know of that, too:
        it lowers offsets, and a replica may lack what it acknowledged."""
        store = self._broker.store
        if store.was_stopped:
            store.close()
        else:
            store.abandon()

    def _load_services(self, promoted: bool) -> None:
        broker = self._broker
        if self._settings.is_slave:
            self._check_classes()
        broker.topics.load()
        if promoted:
            add_unknown_topics(broker.store, broker.topics)
        broker.groups.load()
        broker.history.load()
        broker.offsets.load()
        if promoted or not broker.store.was_stopped:  # offsets may be of messages that we never got
            broker.offsets.reset_past_end(broker.store.queue_end)
        broker.history.reset_past_end(broker.store.queue_end)
        broker.filters.load()
        broker.clients.load()
        broker.schedule.load()
        broker.name_service.kv.load()
        if self._settings.is_slave:  # it delivers nothing, and only knows how far its master is
            broker.timers.checkpoints.load()
            broker.batch_ledger.book.load_file()
            forget_timer_log(broker.store.disk, self._settings.store_path_root_dir)
            return
        if self._settings.timer_wheel_enable:
            broker.timers.load()
        broker.transactions.load()
        broker.batch_ledger.book.load()

    def _check_classes(self) -> None:
        """A slave copies its master's configuration, and cannot keep an unknown file in sync."""
        folder = self._broker.store.settings.layout.config
        unknown = without_class(self._broker.store.disk.listdir(folder))
        if unknown:
            raise StartError(
                f"{folder} has files that a slave cannot keep in sync with its master: "
                f"{', '.join(unknown)}; move them away"
            )

    async def start(self) -> None:
        """Run all background work."""
        broker = self._broker
        await broker.store.start()
        if self._settings.is_slave:
            self.spawn("delay offsets", broker.schedule.file.run())
        else:
            await self._start_deliveries()
        for name, file in self._files.items():
            pause_s = self._settings.flush_consumer_offset_interval / 1000
            self.spawn(name, file.run(pause_s if name == "offsets" else QUIET_S, broker.turns))
        self.spawn("history", broker.history.run())
        self.spawn("clients", broker.clients.run())
        self.spawn("stats", broker.stats.run())
        self.spawn("names", broker.name_service.watch())
        if broker.guard.is_on:
            self.spawn("users", broker.guard.book.watch())

    async def _start_deliveries(self) -> None:
        """Services that put messages: a master's work."""
        broker = self._broker
        await broker.schedule.start()
        if self._settings.timer_wheel_enable:
            await broker.timers.start()
        await self._checks.start()
        self.spawn("batch ledger", broker.batch_ledger.run())

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run until the stop; an unexpected end is logged as an error, and makes the broker
        unhealthy."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self.task_ended)
        self._tasks.append(task)
        return task

    def task_ended(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.failed = task.get_name()
            log.error("a part of the broker has failed", part=self.failed, exc_info=error)

    # --- stop

    def before_stop(self) -> None:
        """Called while the connections are still open."""
        self._save(self._broker.clients.stop)

    async def stop(self) -> None:
        """Called when no request can come any more: stop, save and flush everything."""
        broker = self._broker
        await self._checks.stop()
        await broker.schedule.stop()
        await broker.timers.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        broker.history.stop()
        for name, file in self._files.items():
            self._save(file.stop, name)
        await broker.store.stop()
        self._save(broker.schedule.save)
        if self._settings.timer_wheel_enable and not self._settings.is_slave:
            self._save(broker.timers.save)

    def _save(self, save: Callable[[], None], name: str = "") -> None:
        """Save; a failure is logged, so that the other parts are still saved."""
        try:
            save()
        except OSError as error:
            log.error("not saved at the stop", part=name or save.__qualname__, reason=str(error))
        except Exception:  # a bug
            log.exception("not saved at the stop", part=name or save.__qualname__)
