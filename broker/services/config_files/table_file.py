"""A table under config/ that may be large: changes go to a journal, the JSON file follows.

A change of an entry is reported by `changed` or `changed_lazily`; an answer that depends on the
change waits for it (`when_saved`). A thread saves: all changes up to its start are saved together,
in the journal beside the JSON file (`journal_file`). So the cost of a save depends on what has
changed, not on the size of the table. The JSON file, which other brokers and people read, is
written `QUIET_S` later or more, so that writing it takes 1 / `WHOLE_SHARE` of the time at most;
and at a stop, which leaves no journal. Its text is made on the loop in slices of
`table_text.SLICE_S`; changes in between are saved again, in the new journal. Waiting callers are
answered as deferred work (`Turns`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.reports import Reports
from aerobee.broker.base.turns import Turns
from aerobee.broker.base.wake import Wake
from aerobee.broker.base.worker import Worker
from aerobee.broker.services.config_files.journal_file import JournalFile, load_with_journal
from aerobee.broker.services.config_files.json_file import put_in_place, write_fresh
from aerobee.broker.services.config_files.table_text import (
    Slices,
    journal_slices,
    made_by,
    whole_slices,
)
from aerobee.broker.store.files.disk import Disk
from aerobee.broker.store.files.real_disk import RealDisk
from aerobee.protocol.files.config_journal import Change, Path, base_of
from aerobee.protocol.files.config_seal import seal

log = structlog.get_logger("aerobee.config")

QUIET_S: Final = 0.2
WHOLE_SHARE: Final = 20.0
RETRY_S: Final = 2.0

Saved = Callable[[OSError | None], None]


class TableFile:
    """Saves a table to `path`.

    `entries` gives all that the JSON file holds, in its order; `value_of` one entry as it is now,
    None when it is gone, and for `("dataVersion",)` the version to save with the others.
    """

    def __init__(
        self,
        path: str,
        clock: Clock,
        entries: Callable[[], Iterator[Change]],
        value_of: Callable[[Path], Any],
        disk: Disk | None = None,
    ) -> None:
        self.path = path
        self._clock = clock
        self._entries = entries
        self._value_of = value_of
        self._disk = disk if disk is not None else RealDisk()
        self._journal = JournalFile(path, self._disk)
        self._unsaved: dict[Path, None] = {}
        self._saving: dict[Path, None] = {}  # of the current save
        self._waiting: list[Saved] = []  # for a save that has not begun
        self._answering: deque[Saved] = deque()  # for the current save
        self._is_written = False  # the current save is done, with this outcome
        self._outcome: OSError | None = None
        self._soon = False  # whether a change is to be saved without waiting for more
        self._changed_at = 0.0  # the first that is not saved
        self._whole_at = float("-inf")  # when the JSON file may be written next
        self._is_behind = False  # the JSON file lacks what an earlier journal has
        self._reports = Reports(clock)
        self._is_failing = False
        self._began_at = 0.0  # the save under way
        self._is_running = False
        self._wake = Wake()
        self._turns = Turns()
        self._answered = Wake()

    def load(self) -> dict[Any, Any] | None:
        content, self._is_behind = load_with_journal(self.path, self._disk)
        return content

    # --- changes

    def changed(self, *paths: Path) -> None:
        """Save these entries soon, together with other changes until then."""
        if not self._unsaved:
            self._changed_at = self._clock.monotonic()
        for path in paths:
            self._unsaved[path] = None
        self._soon = True
        if self._is_running:
            self._wake.set()
        else:
            self._save_in_place()

    def changed_lazily(self, path: Path) -> None:
        """Save the entry within the pause of `run`."""
        if not self._unsaved:
            self._changed_at = self._clock.monotonic()
            self._wake.set()
        self._unsaved[path] = None

    @property
    def is_saved(self) -> bool:
        """Whether every change is on disk."""
        return not self._unsaved and not self._saving

    def holds(self, path: Path) -> bool:
        """Whether this entry is on disk as it is now."""
        is_saving = path in self._saving and not (self._is_written and self._outcome is None)
        return path not in self._unsaved and not is_saving

    def when_saved(self, then: Saved, path: Path | None = None) -> None:
        """Call back once every change so far is on disk, or with the reason why it is not. With a
        path that is being saved it waits for that save alone, and so keeps its turn."""
        if not self._unsaved or (path in self._saving and path not in self._unsaved):
            if self._saving:
                self._answering.append(then)
                if self._is_written:
                    self._turns.later(self._answer_next)
            else:
                then(None)
            return
        self._waiting.append(then)
        if self._is_running:
            self._wake.set()
        else:
            self._save_in_place()

    async def saved(self) -> None:
        """Return when every change so far is on disk; OSError when the disk refuses."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: OSError | None) -> None:
            if not future.done():
                future.set_result(None) if error is None else future.set_exception(error)

        self.when_saved(done)
        await future

    # --- saving in the background

    async def run(self, pause_s: float = QUIET_S, turns: Turns | None = None) -> None:
        """Save what changes, lazy changes within `pause_s`; ends by cancellation."""
        self._turns = Turns() if turns is None else turns
        worker = Worker("aerobee-config")
        self._is_running = True
        try:
            while True:
                wait_s = self._wait_s(pause_s)
                if wait_s is None:
                    await self._wake.wait()
                elif wait_s > 0:
                    await self._wake.wait_at_most(self._clock, wait_s)
                else:
                    await self._round(worker)
        finally:
            self._is_running = False
            worker.stop()

    def _wait_s(self, pause_s: float) -> float | None:
        """How long the next round can wait; None: there is nothing to do."""
        due_at = None
        if self._unsaved:
            due_at = self._changed_at + (0.0 if self._soon or self._waiting else pause_s)
            if not self._journal.is_open:
                due_at = max(due_at, self._whole_at)
        if self._journal.is_used or self._is_behind:
            due_at = self._whole_at if due_at is None else min(due_at, self._whole_at)
        return None if due_at is None else due_at - self._clock.monotonic()

    async def _round(self, worker: Worker) -> None:
        """Save to the journal if somebody waits; write the JSON file when that is due, which saves
        all changes."""
        is_time = self._clock.monotonic() >= self._whole_at
        if self._journal.is_open and self._unsaved and (self._waiting or not is_time):
            await self._save(worker, self._changes_text, self._append, self._appended)
            is_time = is_time or not self._journal.is_open  # it is full, or failed
        if is_time and (self._unsaved or self._journal.is_used or self._is_behind):
            await self._save(worker, self._whole_text, self._replace, self._replaced)

    async def _save(
        self,
        worker: Worker,
        text: Callable[[], Slices],
        write: Callable[[list[bytes]], OSError | None],
        complete: Callable[[OSError | None], None],
    ) -> None:
        self._take()
        try:
            try:
                await worker.run_to_end(write, await _made(text()), complete)
            except Exception as error:  # a bug: saving goes on
                self._not_made(error)
            for _ in self._answering:
                self._turns.later(self._answer_next)
            while self._answering:
                await self._answered.wait()
        except asyncio.CancelledError:
            self._end_save()
            raise
        self._end_save()

    def _take(self) -> None:
        self._saving, self._unsaved = self._unsaved, {}
        self._answering, self._waiting = deque(self._waiting), []
        self._soon = False
        self._is_written = False
        self._began_at = self._clock.monotonic()

    def _put_back(self) -> None:
        self._unsaved = self._saving | self._unsaved
        self._waiting = [*self._answering, *self._waiting]
        self._saving, self._answering = {}, deque()
        self._soon = True

    def _appended(self, error: OSError | None) -> None:
        if self._journal.is_open:
            self._complete(None)
            return
        self._put_back()  # the whole JSON file is written next, also for the waiting callers
        if error is not None:
            self._log_failure(error)

    def _replaced(self, error: OSError | None) -> None:
        if error is not None:
            self._unsaved = self._saving | self._unsaved
            self._is_behind = True
            self._soon = True
            self._whole_at = max(self._whole_at, self._clock.monotonic() + RETRY_S)
            self._log_failure(error)
        elif self._is_failing:
            self._is_failing = False
            log.info("a config file is saved again", path=self.path)
        self._complete(error)

    def _not_made(self, error: Exception) -> None:
        """The save has failed for another reason than the disk's."""
        self._journal.is_open = False  # the whole JSON file is written next, after a pause
        reason = OSError(f"{type(error).__name__}: {error}")
        reason.__cause__ = error
        self._replaced(reason)

    def _complete(self, error: OSError | None) -> None:
        """On the loop: the save has succeeded, or failed with this error."""
        self._is_written, self._outcome = True, error

    def _answer_next(self) -> None:
        """Answer one waiter of the save."""
        if self._answering:  # else the save was ended without waiting for a turn
            try:
                self._answering.popleft()(self._outcome)
            except Exception:  # the others still get their answers
                log.exception("answering after a save failed", path=self.path)
            if not self._answering:
                self._answered.set()

    def _end_save(self) -> None:
        if self._is_written:
            while self._answering:
                self._answer_next()
            self._saving = {}
        else:
            self._put_back()

    def _changes_text(self) -> Slices:
        return journal_slices(self._saving, self._value_of, self._left_out)

    def _whole_text(self) -> Slices:
        return whole_slices(self._entries, self._left_out)

    # --- in the thread, or in place

    def _append(self, texts: list[bytes]) -> OSError | None:
        try:
            self._journal.append(texts)
        except OSError as error:
            return error
        return None

    def _replace(self, texts: list[bytes]) -> OSError | None:
        data = seal(b"".join(texts))
        base = base_of(data)
        try:
            write_fresh(self.path, data, self._disk)
            self._journal.end(base)
            put_in_place(self.path, self._disk)
            self._journal.begin(base)
        except OSError as error:
            return error
        self._is_behind = False
        now = self._clock.monotonic()
        self._whole_at = now + max(QUIET_S, (now - self._began_at) * WHOLE_SHARE)
        return None

    def save(self) -> None:
        """Write the JSON file now, in place; OSError when the disk refuses."""
        self._take()
        try:
            self._replaced(self._replace(made_by(self._whole_text())))
        except Exception as error:  # a bug: the others of a stop are still saved
            self._not_made(error)
        outcome = self._outcome
        self._end_save()
        if outcome is not None:
            raise outcome

    def step(self) -> bool:
        """Save what has changed, in place and as `run` does it; whether that has worked."""
        if self._journal.is_open:
            self._take()
            self._appended(self._append(made_by(self._changes_text())))
            self._end_save()
        if not self._journal.is_open:
            self._save_in_place()
        return self.is_saved

    def _save_in_place(self) -> None:
        with suppress(OSError):  # it is logged, and the waiters get it
            self.save()

    def stop(self) -> None:
        """After `run`: leave a JSON file that holds everything, and no journal."""
        if not self.is_saved or self._journal.is_used or self._is_behind or self._waiting:
            self.save()
        self._journal.remove()

    def _left_out(self, entry: Path, error: Exception) -> None:
        self._reports.log(
            "a value of a config file cannot be written",
            entry,
            path=self.path,
            entry=".".join(entry).encode(errors="backslashreplace").decode(),
            reason=f"{type(error).__name__}: {error}",
            then="it is left out of the file, so a restart forgets it; the rest is saved; "
            "set it again",
        )

    def _log_failure(self, error: OSError) -> None:
        self._is_failing = True
        self._reports.disk_error(
            "a config file cannot be saved",
            error,
            call="write",
            path=self.path,
            then=f"changes are kept in memory; saving is retried every {RETRY_S:g} s",
        )


async def _made(slices: Slices) -> list[bytes]:
    """The texts, made in turn with other work of the loop."""
    while True:
        try:
            next(slices)
        except StopIteration as made:
            texts: list[bytes] = made.value
            return texts
        await asyncio.sleep(0)
