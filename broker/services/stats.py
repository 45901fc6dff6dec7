"""Throughput per topic, per group, and of the whole broker.

The hot path only adds to plain numbers. Every ten seconds they are noted, and rates over a window
are the difference between now and the oldest note inside it.
"""

from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Final, NamedTuple

from aerobee.broker.base.clock import Clock

NOTE_S: Final = 10.0
_MINUTE_NOTES: Final = 6  # of ten seconds
_HOUR_NOTES: Final = 6  # of ten minutes
_DAY_NOTES: Final = 24  # of an hour
_NOTES_PER_TEN_MINUTES: Final = 60
_NOTES_PER_HOUR: Final = 360


class Note(NamedTuple):
    """What a counter had counted at one moment."""

    at_ms: int
    nums: int
    size: int
    times: int


class Counter:
    """What was counted under one name, and the notes that its rates come from."""

    __slots__ = ("_day", "_hour", "_minute", "nums", "size", "times")

    def __init__(self, now_ms: int) -> None:
        self.nums = 0  # messages
        self.size = 0  # bytes
        self.times = 0  # requests
        first = Note(now_ms, 0, 0, 0)
        self._minute: deque[Note] = deque([first], _MINUTE_NOTES)
        self._hour: deque[Note] = deque([first], _HOUR_NOTES)
        self._day: deque[Note] = deque([first], _DAY_NOTES)

    def add(self, nums: int, size: int) -> None:
        self.nums += nums
        self.size += size
        self.times += 1

    def note(self, now_ms: int, number: int) -> None:
        """Note the present numbers, as the `number`th note."""
        note = Note(now_ms, self.nums, self.size, self.times)
        self._minute.append(note)
        if number % _NOTES_PER_TEN_MINUTES == 0:
            self._hour.append(note)
        if number % _NOTES_PER_HOUR == 0:
            self._day.append(note)

    @property
    def idle(self) -> bool:
        """Whether nothing was counted in the whole day."""
        return len(self._day) == _DAY_NOTES and self._day[0].times == self.times

    def windows(self, now_ms: int, *, size: bool = False) -> dict[str, dict[str, float]]:
        """As RocketMQ's BrokerStatsData: sum, rate and mean per request of three windows."""
        now = Note(now_ms, self.nums, self.size, self.times)
        return {
            "statsMinute": _window(self._minute[0], now, size),
            "statsHour": _window(self._hour[0], now, size),
            "statsDay": _window(self._day[0], now, size),
        }

    def rate(self, now_ms: int) -> float:
        """Messages per second in the last minute."""
        now = Note(now_ms, self.nums, self.size, self.times)
        return _window(self._minute[0], now, False)["tps"]


def _local_day(now_ms: int) -> int:
    return datetime.fromtimestamp(now_ms / 1000).toordinal()


def _window(first: Note, last: Note, size: bool) -> dict[str, float]:
    elapsed_ms = last.at_ms - first.at_ms
    total = last.size - first.size if size else last.nums - first.nums
    times = last.times - first.times
    return {
        "avgpt": total / times if times else 0.0,
        "sum": total,
        "tps": total * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0,
    }


# 315's names -> which table, and whether they mean the size.
STATS_NAMES: Final = {
    "TOPIC_PUT_NUMS": ("put", False),
    "TOPIC_PUT_SIZE": ("put", True),
    "GROUP_GET_NUMS": ("get", False),
    "GROUP_GET_SIZE": ("get", True),
    "SNDBCK_PUT_NUMS": ("send_back", False),
    "BROKER_PUT_NUMS": ("broker_put", False),
    "BROKER_GET_NUMS": ("broker_get", False),
}


class _RateNote(NamedTuple):
    """The broker's counters at one moment."""

    at: float
    put: int
    got: int
    found: int
    missed: int


class Stats:
    """All counters of the broker. Keys: topic, or topic@group."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        now_ms = clock.now_ms()
        self.started_ms = now_ms
        self.broker_put = Counter(now_ms)
        self.broker_get = Counter(now_ms)
        self.pulls_found = Counter(now_ms)
        self.pulls_missed = Counter(now_ms)
        self.size_counts = [0] * 33  # stored messages by the bits that their size takes
        self._tables: dict[str, dict[str, Counter]] = {
            "put": {},
            "get": {},
            "send_back": {},
            "dead": {},
        }
        self._puts = self._tables["put"]
        self._gets = self._tables["get"]
        self._notes = 0
        self._rates: deque[_RateNote] = deque([_RateNote(clock.monotonic(), 0, 0, 0, 0)], 62)
        self._watched: dict[str, tuple[Callable[[], int], deque[tuple[float, int]]]] = {}
        self._day = _local_day(now_ms)
        self.put_yesterday = self.put_today = 0  # totals at those mornings
        self.get_yesterday = self.get_today = 0

    # --- the hot path

    def add_put(self, topic: str, messages: int, size: int, requests: int = 1) -> None:
        """Count stored sends."""
        counter = self._puts.get(topic)
        if counter is None:
            counter = self._puts[topic] = Counter(self._clock.now_ms())
        counter.nums += messages
        counter.size += size
        counter.times += requests
        self.size_counts[(size // messages).bit_length()] += messages
        total = self.broker_put
        total.nums += messages
        total.size += size
        total.times += requests

    def add_get(self, topic: str, group: str, messages: int, size: int) -> None:
        """A pull brought messages."""
        key = f"{topic}@{group}"
        counter = self._gets.get(key)
        if counter is None:
            counter = self._gets[key] = Counter(self._clock.now_ms())
        counter.nums += messages
        counter.size += size
        counter.times += 1
        total = self.broker_get
        total.nums += messages
        total.size += size
        total.times += 1
        self.pulls_found.nums += 1

    def add_miss(self) -> None:
        """A pull found nothing."""
        self.pulls_missed.nums += 1

    def add_send_back(self, topic: str, group: str) -> None:
        """A consumer sent a message back for a retry."""
        self.counter("send_back", f"{topic}@{group}").add(1, 0)

    def add_dead(self, topic: str, group: str) -> None:
        """A message went to a group's dead letters."""
        self.counter("dead", f"{topic}@{group}").add(1, 0)

    # --- reading

    def counter(self, table: str, key: str) -> Counter:
        counters = self._tables[table]
        found = counters.get(key)
        if found is None:
            found = counters[key] = Counter(self._clock.now_ms())
        return found

    def find(self, name: str, key: str) -> tuple[Counter, bool] | None:
        """The counter that VIEW_BROKER_STATS_DATA names, and whether its size is meant."""
        table, size = STATS_NAMES.get(name, ("", False))
        if table == "broker_put":
            return self.broker_put, size
        if table == "broker_get":
            return self.broker_get, size
        found = self._tables.get(table, {}).get(key)
        return None if found is None else (found, size)

    def put_counters(self) -> list[tuple[str, Counter]]:
        """(topic, what was sent to it)."""
        return list(self._puts.items())

    def get_counters(self) -> list[tuple[str, str, Counter]]:
        """(topic, group, what the group pulled from it)."""
        return [(*key.rpartition("@")[::2], counter) for key, counter in self._gets.items()]

    def dead_counters(self) -> list[tuple[str, str, Counter]]:
        """(topic, group, what of it went to the group's dead letters)."""
        dead = self._tables["dead"]
        return [(*key.rpartition("@")[::2], counter) for key, counter in dead.items()]

    def put_rate(self, topic: str) -> float:
        """Messages sent to the topic per second, in the last minute."""
        counter = self._puts.get(topic)
        return counter.rate(self._clock.now_ms()) if counter else 0.0

    def get_rate(self, topic: str, group: str) -> float:
        """Messages that the group pulled from the topic per second, in the last minute."""
        counter = self._gets.get(f"{topic}@{group}")
        return counter.rate(self._clock.now_ms()) if counter else 0.0

    def rates(self, seconds: float) -> tuple[float, float, float, float]:
        """Rates over the last seconds: puts, messages read, pulls with and without messages."""
        now = self._rate_note()
        first = self._rates[0]
        for note in self._rates:
            if now.at - note.at < seconds:
                break
            first = note
        elapsed = max(now.at - first.at, 0.001)
        return (
            (now.put - first.put) / elapsed,
            (now.got - first.got) / elapsed,
            (now.found - first.found) / elapsed,
            (now.missed - first.missed) / elapsed,
        )

    def watch(self, name: str, read: Callable[[], int]) -> None:
        """Note a number of another service too, for its rate."""
        self._watched[name] = (read, deque([(self._clock.monotonic(), read())], _MINUTE_NOTES))

    def watched_rate(self, name: str) -> float:
        """By how much a watched number grew per second in the last minute."""
        read, notes = self._watched[name]
        first, before = notes[0]
        return (read() - before) / max(self._clock.monotonic() - first, 0.001)

    def _rate_note(self) -> _RateNote:
        return _RateNote(
            self._clock.monotonic(),
            self.broker_put.nums,
            self.broker_get.nums,
            self.pulls_found.nums,
            self.pulls_missed.nums,
        )

    # --- keeping

    def delete_topic(self, topic: str) -> None:
        self._puts.pop(topic, None)
        for table in (self._gets, self._tables["send_back"], self._tables["dead"]):
            for key in [key for key in table if key.startswith(f"{topic}@")]:
                del table[key]

    def delete_group(self, group: str) -> None:
        for table in (self._gets, self._tables["send_back"], self._tables["dead"]):
            for key in [key for key in table if key.endswith(f"@{group}")]:
                del table[key]

    def note(self) -> None:
        """Note all numbers; forget what was not counted in a day."""
        self._notes += 1
        now_ms = self._clock.now_ms()
        self._rates.append(self._rate_note())
        for read, notes in self._watched.values():
            notes.append((self._clock.monotonic(), read()))
        for counter in (self.broker_put, self.broker_get):
            counter.note(now_ms, self._notes)
        for table in self._tables.values():
            for counter in table.values():
                counter.note(now_ms, self._notes)
            if self._notes % _NOTES_PER_HOUR == 0:
                for key in [key for key, counter in table.items() if counter.idle]:
                    del table[key]
        if (today := _local_day(now_ms)) != self._day:
            self._day = today
            self.put_yesterday, self.put_today = self.put_today, self.broker_put.nums
            self.get_yesterday, self.get_today = self.get_today, self.broker_get.nums

    async def run(self) -> None:
        """Take notes until cancelled."""
        while True:
            await self._clock.sleep(NOTE_S)
            self.note()
