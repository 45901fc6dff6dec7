"""What a reader finds after a power cut, compared with the answers given before it."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

from crash.powercut.history import (
    COMMIT,
    HALF,
    LEVEL,
    NEVER,
    PLAIN,
    ROLLBACK,
    ROW,
    TIMER,
    History,
    Sent,
    Totals,
)
from crash.powercut.load import (
    END,
    QUEUES,
    TOPIC,
    group_offset,
    last_batch,
    max_offset,
    now_ms,
    pull,
    write_batch,
)
from peers.wire import Wire

from aerobee.protocol.files.record import StoredMessage

QUERY_BY_KEY: Final = 12
SYSTEM_BUSY: Final = 2  # queues are still catching up with the log
KEYS_LOOKED_UP: Final = 40
DELIVERED_WITHIN: Final = 20.0  # seconds after the last is due, on a busy machine
SHOWN: Final = 3  # violations of one kind that are printed in full


class Checker:
    def __init__(self, history: History, totals: Totals, skew_ms: int = 0) -> None:
        """`skew_ms`: how far the broker's clock may be ahead of ours."""
        self._history = history
        self.totals = totals
        self._skew_ms = skew_ms
        self.clean = True

    def wrong(self, kind: str, text: str, *, number: int = 1, fatal: bool = True) -> None:
        """Fatal: the disk is abandoned, because later violations would only be consequences."""
        self.clean = self.clean and not fatal
        self.totals.violations[kind] += number
        if self.totals.violations[kind] <= SHOWN:
            print(f"VIOLATION {kind}: life {self._history.life}: {text}", flush=True)

    # -- after a start

    def after_start(self, address: str, rng: random.Random, *, whole: bool) -> None:
        with Wire(address, timeout=30) as wire:
            self.read(wire, whole=whole)
            self._check_seen()
            self._check_present()
            self._check_group(wire)
            self._check_keys(wire, rng)
            self._check_ledger(wire)

    def read(self, wire: Wire, *, whole: bool) -> None:
        for queue_id in range(QUEUES):
            known = self._history.known.setdefault(queue_id, [])
            number = 0 if whole else len(known)
            end = max_offset(wire, queue_id)
            if end < len(known):
                text = f"queue {queue_id} has {end} of {len(known)} that a reader found before"
                self.wrong("queue-shorter", text)
                del known[end:]
                number = min(number, end)
            while number < end:
                found = pull(wire, queue_id, number)
                if not found:
                    self.wrong("gap", f"queue {queue_id}: nothing at {number} of {end}")
                    break
                for message in found:
                    if message.queue_offset != number:
                        text = f"queue {queue_id}: {message.queue_offset} follows {number - 1}"
                        self.wrong("gap", text)
                        return
                    self._take(queue_id, number, known, message)
                    number += 1

    def _take(self, queue_id: int, number: int, known: list[str], message: StoredMessage) -> None:
        key = message.property_map().get("KEYS", "")
        body = bytes(message.body)
        sent = self._history.sent.get(key)
        where = f"queue {queue_id} at {number}"
        if sent is None or sent.body != body:
            self.wrong("torn", f"{where}: {key!r} is not what was sent")
            return
        early = sent.due_ms - message.store_timestamp
        if early > self._skew_ms:
            self.wrong("early", f"{where}: {key} ({sent.kind}) came {early} ms too early")
        if sent.kind == HALF and sent.outcome != COMMIT:
            self.wrong("not-committed", f"{where}: {key} is visible, its end is {sent.outcome}")
        if number < len(known):
            if known[number] != key:
                self.wrong("replaced", f"{where}: {key} took the place of {known[number]}")
                known[number] = key
        else:
            known.append(key)

    def places(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for queue_id, keys in self._history.known.items():
            for number, key in enumerate(keys):
                yield key, (queue_id, number)

    def _check_seen(self) -> None:
        """A consumer that has read a message may rely on it."""
        for (queue_id, number), (key, _) in self._history.seen.items():
            keys = self._history.known.get(queue_id, [])  # missing when another queue had a gap
            if number >= len(keys) or keys[number] != key:
                now = keys[number] if number < len(keys) else "nothing"
                text = f"{key} was consumed at {number} of queue {queue_id}, now there is {now}"
                self.wrong("seen-and-lost", text)
        self.totals.seen += len(self._history.seen)
        self._history.seen.clear()  # `known` is the reference from here on

    def _check_present(self) -> None:
        """Messages that need no further processing are there at once, and once."""
        places = dict(self.places())
        for sent in self._history.sent.values():
            if sent.kind == PLAIN and sent.firm and places.get(sent.key) != sent.place:
                found = places.get(sent.key, "not there")
                self.wrong("lost", f"{sent.key} was acknowledged at {sent.place}: {found}")
                sent.firm = False
            if sent.end_firm and sent.outcome == COMMIT and sent.key not in places:
                self.wrong("lost-commit", f"{sent.key} was committed and is not there")
                sent.end_firm = False
        self.totals.late_lost += sum(
            1 for sent in self._history.late if sent.kind == PLAIN and sent.key not in places
        )
        self._history.late = []
        self._check_once()

    def _check_once(self) -> None:
        """A duplicate is reported once; the disk stays in use."""
        counts = Counter(key for key, _ in self.places())
        for key, count in counts.items():
            more = count - 1 - self._history.copies[key]
            if more > 0:
                self._history.copies[key] += more
                kind = self._history.sent[key].kind
                text = f"{key} is there {count} times"
                self.wrong(f"twice-{kind}", text, number=more, fatal=False)

    def _check_group(self, wire: Wire) -> None:
        for queue_id in range(QUEUES):
            offset, end = group_offset(wire, queue_id), max_offset(wire, queue_id)
            if offset > min(end, self._history.offered[queue_id]):
                offered = self._history.offered[queue_id]
                text = (
                    f"the group is at {offset} of queue {queue_id}, committed {offered}, end {end}"
                )
                self.wrong("group-ahead", text)

    def _check_keys(self, wire: Wire, rng: random.Random) -> None:
        keys = [key for key, _ in self.places()]
        for key in rng.sample(keys, min(KEYS_LOOKED_UP, len(keys))):
            fields = {"topic": TOPIC, "key": key, "maxNum": "8", "beginTimestamp": "0"}
            answer = wire.request(QUERY_BY_KEY, {**fields, "endTimestamp": str(now_ms() + 60_000)})
            if answer.code != 0:
                self.wrong("key-not-found", f"{key}: {answer.header.get('remark')}")

    def _check_ledger(self, wire: Wire) -> None:
        """The exactly-once sink: every acknowledged batch is there, with all rows."""
        firm = [sent for sent in self._history.sent.values() if sent.kind == ROW and sent.firm]
        expected = max((sent.batch for sent in firm), default=-1)
        if (batch := last_batch(wire)) < expected:
            self.wrong("ledger", f"batch {expected} was committed, the ledger is at {batch}")
        known = dict(self.places())
        for sent in firm:
            if sent.key not in known:
                self.wrong("lost-row", f"{sent.key} was committed and is not there")
                sent.firm = False

    # -- transactions that a cut left open or in doubt

    def end_open(self, address: str) -> None:
        """Repeat the ends of transactions, as a producer without an answer does."""
        with Wire(address, timeout=30) as wire:
            for sent in self._history.sent.values():
                if sent.end is not None and sent.firm and sent.end_acked == NEVER:
                    self._end(wire, sent)

    def _end(self, wire: Wire, sent: Sent) -> None:
        assert sent.end is not None
        asked_before, sent.outcome = sent.outcome, sent.outcome or COMMIT
        answer = wire.request(END, {**sent.end, "commitOrRollback": str(sent.outcome)})
        remark = answer.header.get("remark") or ""
        if answer.code == 0 or (asked_before and "not open any more" in remark):
            sent.end_acked = time.monotonic()
        elif answer.code != SYSTEM_BUSY:  # else it is retried after the next start
            self.wrong("half-lost", f"{sent.key} cannot be ended: {remark}")
            sent.firm = False

    # -- the last life

    def to_the_end(self, address: str) -> None:
        """Everything that is pending is delivered once."""
        self.end_open(address)
        with Wire(address, timeout=30) as wire:
            if not write_batch(wire, self._history):
                self.wrong("ledger", "the sink's next batch is refused")
        due = max((sent.due_ms for sent in self._history.sent.values()), default=0)
        deadline = time.monotonic() + max(0, due - now_ms()) / 1000 + DELIVERED_WITHIN
        with Wire(address, timeout=30) as wire:
            while True:
                self.read(wire, whole=False)
                places = dict(self.places())
                missing = [sent for sent in self._expected() if sent.key not in places]
                if (not missing and now_ms() > due + 300) or time.monotonic() > deadline:
                    break
                time.sleep(0.1)
            self.read(wire, whole=True)
        for sent in missing:
            text = f"{sent.key} was due at {sent.due_ms} and did not come"
            self.wrong(f"lost-{sent.kind}", text)
        self._check_once()

    def _expected(self) -> Iterator[Sent]:
        for sent in self._history.sent.values():
            if (sent.kind in (PLAIN, LEVEL, TIMER, ROW) and sent.firm) or (
                sent.kind == HALF and sent.firm and sent.outcome not in (0, ROLLBACK)
            ):
                yield sent
