"""The history by which `aerobee why` explains a missing message: config/whyHistory.json.

Only what no other file has: how subscriptions changed, when a group began, passed, was moved
and left, who read a queue last, which log files were removed. All of it is bounded. Services note
what changed; a loop writes it every few seconds, so that no request waits for it.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.wake import Wake
from aerobee.broker.services.clients.consumer_group import ConsumerGroup
from aerobee.broker.services.clients.subscription import Subscription
from aerobee.broker.services.config_files.config_file import as_int
from aerobee.broker.services.config_files.table_file import TableFile
from aerobee.broker.services.why.samples import thinned
from aerobee.broker.store.files.disk import Disk
from aerobee.protocol.files.config_journal import Change, Path

NOTE_S: Final = 5.0  # as often as offsets are saved
CHANGES_MAX: Final = 20  # of one group's subscription to a topic; and of its resets
REMOVED_MAX: Final = 1000
ROWS_MAX: Final = 10_000  # groups, queues and subscriptions that are remembered
QUEUES_MAX: Final = 256  # whose offsets are noted with a subscription's change
EXPRESSION_MAX: Final = 4096  # characters

_SUBSCRIPTIONS: Final = "subscriptions"  # topic@group -> list of changes
_GROUPS: Final = "groups"  # group -> when its last member left
_QUEUES: Final = "queues"  # topic@group@queue -> where it began, its commits, its last reader
_RESETS: Final = "resets"  # topic@group@queue -> list of moves
_REMOVED: Final = "removed"  # start of a log file -> when and why it went
_TABLES: Final = (_SUBSCRIPTIONS, _GROUPS, _QUEUES, _RESETS, _REMOVED)
_LIMITS: Final = {_REMOVED: REMOVED_MAX}

SLICE: Final = 32  # groups whose progress is noted before others have their turn
_SHAPES: Final[dict[str, tuple[type, set[str]]]] = {  # rows or lists of rows, and their fields
    _SUBSCRIPTIONS: (list, {"at", "type", "expression"}),
    _GROUPS: (dict, {"left"}),
    _QUEUES: (dict, set()),
    _RESETS: (list, {"at", "was", "to"}),
    _REMOVED: (dict, {"end", "written", "at", "why"}),
}

# Of a topic@group: queue id -> committed offset, pulled offset, and client.
Progress = Callable[[str], dict[int, tuple[int, int, str]]]
Row = dict[str, Any]


class History:
    """Notes, by table and key; each row is a small JSON object or list."""

    def __init__(self, path: str, clock: Clock, disk: Disk | None = None) -> None:
        self._clock = clock
        self.file = TableFile(path, clock, self._entries, self._value_of, disk)
        self._tables: dict[str, dict[str, Any]] = {name: {} for name in _TABLES}
        self._moved: set[str] = set()  # topic@group whose offsets have changed
        self._wake = Wake()
        self.progress: Progress = lambda _key: {}
        self._online: dict[str, str] = {}  # group -> one of its members

    # --- noting

    def _put(self, table: str, key: str, row: Any) -> None:
        rows = self._tables[table]
        rows.pop(key, None)  # the newest last
        rows[key] = row
        self.file.changed_lazily((table, key))
        while len(rows) > _LIMITS.get(table, ROWS_MAX):
            oldest = next(iter(rows))
            del rows[oldest]
            self.file.changed_lazily((table, oldest))

    def group_changed(self, name: str, group: ConsumerGroup | None) -> None:
        """For `clients.on_group_change`."""
        now_ms = self._clock.now_ms()
        if group is None:
            self._put(_GROUPS, name, {"left": now_ms, "by": self._online.pop(name, "")})
            return
        if name not in self._online:
            self._put(_GROUPS, name, {"left": 0})
        self._online[name] = next(iter(group.members.values())).client_id
        for topic, subscription in group.subscriptions.items():
            self._note_subscription(f"{topic}@{name}", subscription, now_ms)

    def _note_subscription(self, key: str, wanted: Subscription, now_ms: int) -> None:
        changes: list[Row] = self._tables[_SUBSCRIPTIONS].get(key, [])
        expression = wanted.expression if len(wanted.expression) <= EXPRESSION_MAX else None
        kind = wanted.expression_type
        if changes and (changes[-1]["type"], changes[-1]["expression"]) == (kind, expression):
            return
        progress = self.progress(key)
        change = {"at": now_ms, "type": kind, "expression": expression}
        if len(progress) <= QUEUES_MAX:
            change["offsets"] = {
                str(queue_id): [committed, pulled]
                for queue_id, (committed, pulled, _) in progress.items()
            }
        self._put(_SUBSCRIPTIONS, key, [*changes, change][-CHANGES_MAX:])

    def moved(self, key: str) -> None:
        """The group has committed another offset."""
        if not self._moved:
            self._wake.set()
        self._moved.add(key)

    def began(self, key: str, queue_id: int, queue_offset: int) -> None:
        """A group without an offset reads a queue for the first time, from there on."""
        name = f"{key}@{queue_id}"
        if name not in self._tables[_QUEUES]:
            self._put(_QUEUES, name, {"began": [self._clock.now_ms(), queue_offset]})

    def reset(self, key: str, queue_id: int, was: int, to: int, by: str) -> None:
        """An operator moved a group."""
        name = f"{key}@{queue_id}"
        move = {"at": self._clock.now_ms(), "was": was, "to": to, "by": by}
        self._put(_RESETS, name, [*self._tables[_RESETS].get(name, []), move][-CHANGES_MAX:])

    def removed(self, start: int, end: int, written_until: int, reason: str) -> None:
        """A file of the log is gone."""
        row = {"end": end, "written": written_until, "at": self._clock.now_ms(), "why": reason}
        self._put(_REMOVED, str(start), row)

    def forget(self, keys: Iterable[str]) -> None:
        """Forget the notes of these topic@group, whose offsets were removed."""
        wanted = set(keys)
        for table in (_QUEUES, _RESETS):
            rows = self._tables[table]
            for name in [name for name in rows if name.rpartition("@")[0] in wanted]:
                self._drop(table, name)
        for key in wanted & self._tables[_SUBSCRIPTIONS].keys():
            self._drop(_SUBSCRIPTIONS, key)

    def _note_all(self) -> Iterator[None]:
        """Note the progress of the groups that have moved since the last time, one by one."""
        now_ms = self._clock.now_ms()
        moved, self._moved = self._moved, set()
        for key in moved:
            for queue_id, (committed, _, puller) in self.progress(key).items():
                self._note_queue(f"{key}@{queue_id}", committed, puller, now_ms)
            yield

    def _note_queue(self, name: str, committed: int, puller: str, now_ms: int) -> None:
        known: Row = self._tables[_QUEUES].get(name, {})
        commits: list[int] = known.get("commits", [])
        if committed < 0 or (commits and commits[-1] == committed):
            return
        row = {**known, "commits": thinned([*commits, now_ms, committed])}
        if puller:
            row["puller"] = puller
        self._put(_QUEUES, name, row)

    async def run(self) -> None:
        """Note progress a few seconds after it was made; ends by cancellation."""
        while True:
            await self._wake.wait()
            await self._clock.sleep(NOTE_S)
            for number, _ in enumerate(self._note_all()):
                if number % SLICE == SLICE - 1:
                    await asyncio.sleep(0)

    def stop(self) -> None:
        """Note the last progress, for the file that is saved next."""
        for _ in self._note_all():
            pass

    # --- reading

    def subscriptions(self, key: str) -> list[Row]:
        """Changes of a group's subscription to a topic, in their order."""
        return list(self._tables[_SUBSCRIPTIONS].get(key, ()))

    def groups_of(self, topic: str) -> list[str]:
        """The groups that are known to have subscribed to the topic."""
        head = topic + "@"
        return [key[len(head) :] for key in self._tables[_SUBSCRIPTIONS] if key.startswith(head)]

    def left(self, group: str) -> tuple[int | None, str]:
        """When the group's last member left, and which; None: not known."""
        row = self._tables[_GROUPS].get(group, {})
        return as_int(row.get("left"), 0) or None, str(row.get("by", ""))

    def queue(self, key: str, queue_id: int) -> Row:
        return dict(self._tables[_QUEUES].get(f"{key}@{queue_id}", {}))

    def resets(self, key: str, queue_id: int) -> list[Row]:
        return list(self._tables[_RESETS].get(f"{key}@{queue_id}", ()))

    def removed_at(self, physical_offset: int) -> tuple[int, Row] | None:
        """The file that held this place."""
        for start, row in self._tables[_REMOVED].items():
            if int(start) <= physical_offset < row["end"]:
                return int(start), row
        return None

    def removed_since(self, written_ms: int) -> tuple[int, Row] | None:
        """The first removed file that was still written at this time."""
        rows = sorted((int(start), row) for start, row in self._tables[_REMOVED].items())
        return next(((start, row) for start, row in rows if row["written"] >= written_ms), None)

    # --- the file

    def load(self) -> None:
        content = self.file.load() or {}
        for table in _TABLES:
            rows = content.get(table)
            for key, row in (rows if isinstance(rows, dict) else {}).items():
                if _is_sound(table, str(key), row):
                    self._tables[table][str(key)] = row
        now_ms = self._clock.now_ms()
        for group, row in list(self._tables[_GROUPS].items()):
            if not row["left"]:  # the broker ended before its members left
                self._put(_GROUPS, group, {"left": now_ms, "by": ""})

    def reset_past_end(self, queue_end: Callable[[str, int], int]) -> None:
        """Forget what was noted of offsets past the ends of their queues: a log that lost its end,
        by a power failure or to follow a master, gives them to other messages."""

        def is_past(name: str, offsets: Iterable[int]) -> bool:
            key, _, queue = name.rpartition("@")
            end = queue_end(key.rpartition("@")[0], as_int(queue, 0))
            return any(offset > end for offset in offsets)

        for name, row in list(self._tables[_QUEUES].items()):
            if is_past(name, [*row.get("began", ())[1:], *row.get("commits", ())[1::2]]):
                self._drop(_QUEUES, name)
        for name, moves in list(self._tables[_RESETS].items()):
            if is_past(name, [offset for move in moves for offset in (move["was"], move["to"])]):
                self._drop(_RESETS, name)
        for key, changes in list(self._tables[_SUBSCRIPTIONS].items()):
            noted = [
                (f"{key}@{queue}", offsets)
                for change in changes
                for queue, offsets in (change.get("offsets") or {}).items()
            ]
            if any(is_past(*one) for one in noted):
                self._drop(_SUBSCRIPTIONS, key)

    def _drop(self, table: str, name: str) -> None:
        del self._tables[table][name]
        self.file.changed_lazily((table, name))

    def _entries(self) -> Iterator[Change]:
        for table in _TABLES:
            rows = self._tables[table]
            if not rows:
                yield (table,), {}
            for key in list(rows):
                if key in rows:
                    yield (table, key), rows[key]

    def _value_of(self, path: Path) -> Any:
        return self._tables[path[0]].get(path[1]) if len(path) == 2 else None


def _is_sound(table: str, key: str, row: Any) -> bool:
    """Whether a row of the file can be used: it may have been edited by hand."""
    check, fields = _SHAPES[table]
    rows = row if check is list and isinstance(row, list) else [row]
    if check is list and not isinstance(row, list):
        return False
    if table == _REMOVED and not key.isdigit():
        return False
    return all(isinstance(one, dict) and fields <= one.keys() for one in rows)
