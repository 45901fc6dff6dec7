"""Clients of a broker that is about to lose power: they note every answer with its time."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections import deque
from typing import Final

from crash.powercut.history import COMMIT, HALF, LEVEL, PLAIN, ROLLBACK, ROW, TIMER, History, Sent
from peers.wire import Answer, Wire, pull_ext

from aerobee.protocol.files.batch import encode_batch
from aerobee.protocol.files.record import StoredMessage, decode_records

SETTINGS: Final = {
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "20000",
    "mappedFileSizeTimerLog": "1048576",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "20000",
    "flushIntervalConsumeQueue": "100",
    "flushConsumeQueueThoroughInterval": "300",
    "flushConsumerOffsetInterval": "200",
    "flushIntervalCommitLog": "100",
    "flushCommitLogLeastPages": "0",
    "diskGuardEnable": "false",
}
TOPIC: Final = "Cut"
GROUP: Final = "CG"
PRODUCERS: Final = "PG"
QUEUES: Final = 4
WRITERS: Final = 3
IN_FLIGHT: Final = 8
SEND, PULL, QUERY_OFFSET, COMMIT_OFFSET, CREATE_TOPIC, MAX_OFFSET, END = 310, 11, 14, 15, 17, 30, 37
RUNTIME_INFO: Final = 28
KINDS: Final = (*[PLAIN] * 14, *[LEVEL] * 2, *[TIMER] * 2, *[HALF] * 2)
SINK_STATE, SINK_PREPARE, SINK_COMMIT = 20100, 20101, 20102
QUERY: Final = "sink"
ROWS: Final = 3  # of a batch of the exactly-once sink
LEVEL_MS: Final = 1000
TIMER_MS: Final = (200, 2000)


class Load:
    """Threads that send and one that consumes, until the broker is gone or `stop`."""

    def __init__(self, address: str, history: History, rng: random.Random) -> None:
        self._address = address
        self._history = history
        self._stopping = False
        names = [f"{history.life}.{n}" for n in range(WRITERS)]
        self._threads = [
            threading.Thread(target=self._write, args=(name, random.Random(rng.random())))
            for name in names
        ]
        self._threads.append(threading.Thread(target=self._consume))
        self._threads.append(threading.Thread(target=self._watch))
        self._threads.append(threading.Thread(target=self._write_batches))
        self.answered = 0
        # What was acknowledged before was flushed, as the broker says; 0: nothing yet.
        self.flushed_until = 0.0

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping = True

    def join(self) -> None:
        for thread in self._threads:
            thread.join(timeout=30)
            assert not thread.is_alive(), "a client of a dead broker still waits"

    # -- producers

    def _write(self, name: str, rng: random.Random) -> None:
        waiting: dict[int, Sent] = {}
        number = 0
        try:
            with Wire(self._address, timeout=20) as wire:
                while True:
                    while len(waiting) < IN_FLIGHT and not self._stopping:
                        sent = new_message(f"{name}-{number}", rng, self._history.life)
                        number += 1
                        self._history.sent[sent.key] = sent
                        waiting[send(wire, sent, rng)] = sent
                    if not waiting:
                        return
                    answer = wire.receive()
                    sent = waiting.pop(int(answer.header["opaque"]))
                    self._note(sent, answer, wire, waiting, rng)
        except OSError:
            return  # the broker is gone: pending outcomes are unknown

    def _note(
        self, sent: Sent, answer: Answer, wire: Wire, waiting: dict[int, Sent], rng: random.Random
    ) -> None:
        now = time.monotonic()
        if answer.code != 0:
            time.sleep(0.001)  # permanently refused, as after a failed sync
            return
        self.answered += 1
        if sent.outcome:
            sent.end_acked = now
            return
        sent.acked = now
        if sent.kind == PLAIN:
            sent.place = int(answer.ext["queueId"]), int(answer.ext["queueOffset"])
        elif sent.kind == HALF:
            sent.end = end_request(answer, sent.key)
            if rng.random() < 0.8:  # else it stays open across the cut
                sent.outcome = rng.choice((COMMIT, COMMIT, ROLLBACK))
                request = {**sent.end, "commitOrRollback": str(sent.outcome)}
                waiting[wire.send(END, request)] = sent

    # -- the exactly-once sink

    def _write_batches(self) -> None:
        try:
            with Wire(self._address, timeout=20) as wire:
                while not self._stopping:
                    if not write_batch(wire, self._history):
                        return
                    time.sleep(0.01)
        except OSError:
            return

    # -- a watcher of how far the log is flushed

    def _watch(self) -> None:
        ends: deque[tuple[float, int]] = deque()  # when, and where the log ended at least then
        try:
            with Wire(self._address, timeout=20) as wire:
                while not self._stopping:
                    asked = time.monotonic()
                    answer = wire.request(RUNTIME_INFO, {})
                    if answer.code != 0:
                        return  # its disk is gone
                    end, flushed = flushed_part(answer)
                    while ends and ends[0][1] <= flushed:
                        self.flushed_until = ends.popleft()[0]
                    ends.append((asked, end))
                    time.sleep(0.01)
        except OSError:
            return

    # -- a consumer

    def _consume(self) -> None:
        try:
            with Wire(self._address, timeout=20) as wire:
                offsets = [group_offset(wire, queue_id) for queue_id in range(QUEUES)]
                while not self._stopping:
                    for queue_id in range(QUEUES):
                        offsets[queue_id] = self._consume_some(wire, queue_id, offsets[queue_id])
                    time.sleep(0.002)
        except OSError:
            return

    def _consume_some(self, wire: Wire, queue_id: int, offset: int) -> int:
        found = pull(wire, queue_id, offset)
        if not found:
            return offset
        now = time.monotonic()
        for message in found:
            key = message.property_map()["KEYS"]
            self._history.seen[queue_id, message.queue_offset] = key, now
        offset = found[-1].queue_offset + 1
        self._history.offered[queue_id] = offset
        fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id)}
        wire.request(COMMIT_OFFSET, {**fields, "commitOffset": str(offset)})
        return offset


def last_batch(wire: Wire) -> int:
    """The sink's newest committed batch; -1: none."""
    return int(wire.request(SINK_STATE, {"query": QUERY}).ext["batch"])


def write_batch(wire: Wire, history: History) -> bool:
    """The batch behind the last committed one, as the sink does it after a crash, too: the same
    rows as before under the same number. False when it was refused."""
    batch = last_batch(wire) + 1
    rows = [history.sent.setdefault(row.key, row) for row in rows_of(batch, history.life)]
    body = encode_batch([(0, row.body, f"KEYS\x01{row.key}\x02") for row in rows])
    attempt = history.attempts[batch]
    history.attempts[batch] += 1
    numbers = {"batch": batch, "partition": 0, "attempt": attempt, "chunk": 0, "queueId": -1}
    fields = {name: str(value) for name, value in numbers.items()}
    fields |= {"query": QUERY, "topic": TOPIC, "producerGroup": PRODUCERS}
    fields |= {"bornTimestamp": str(now_ms()), "named": "false"}
    put = wire.request(SINK_PREPARE, fields, body)
    if put.code != 0:
        return False
    chunk = [0, attempt, 0, int(put.ext["offset"]), int(put.ext["size"])]
    commit = {"query": QUERY, "batch": str(batch), "timeoutMs": "60000"}
    if wire.request(SINK_COMMIT, commit, json.dumps({"chunks": [chunk]}).encode()).code != 0:
        return False
    for row in rows:
        row.acked = min(row.acked, time.monotonic())
    return True


def rows_of(batch: int, life: int) -> list[Sent]:
    keys = [f"{QUERY}-{batch}-{number}" for number in range(ROWS)]
    return [Sent(key, ROW, key.encode() * 20, batch=batch, life=life) for key in keys]


def flushed_part(answer: Answer) -> tuple[int, int]:
    """Where the log ends, and how far it is flushed at least: the rest is reported rounded."""
    table = json.loads(answer.body)["table"]
    end = int(table["commitLogMaxOffset"])
    number, unit = table["remainHowManyDataToFlush"].split()
    scale = 1024 ** "BKMG".index(unit[0])
    return end, end - math.ceil((float(number) + (0.05 if scale > 1 else 0)) * scale)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def new_message(key: str, rng: random.Random, life: int) -> Sent:
    kind = rng.choice(KINDS)
    body = f"{key}:".encode() + rng.randbytes(rng.choice((0, 30, 900, 5000)))
    due_ms = 0
    if kind == LEVEL:
        due_ms = now_ms() + LEVEL_MS
    elif kind == TIMER:
        due_ms = now_ms() + rng.randint(*TIMER_MS)
    return Sent(key, kind, body, due_ms, life=life)


def send(wire: Wire, sent: Sent, rng: random.Random) -> int:
    names = {"KEYS": sent.key, "UNIQ_KEY": sent.key, "TAGS": "t"}
    if sent.kind == LEVEL:
        names["DELAY"] = "1"
    elif sent.kind == TIMER:
        names["TIMER_DELIVER_MS"] = str(sent.due_ms)
    elif sent.kind == HALF:
        names |= {"TRAN_MSG": "true", "PGROUP": PRODUCERS}
    header = {
        "a": PRODUCERS,
        "b": TOPIC,
        "c": "TBW102",
        "d": str(QUEUES),
        "e": str(rng.randrange(QUEUES)),
        "f": "4" if sent.kind == HALF else "0",
        "g": str(now_ms()),
        "h": "0",
        "i": "".join(f"{name}\x01{value}\x02" for name, value in names.items()),
        "j": "0",
        "k": "false",
        "m": "false",
    }
    return wire.send(SEND, header, sent.body)


def end_request(answer: Answer, key: str) -> dict[str, str]:
    return {
        "producerGroup": PRODUCERS,
        "tranStateTableOffset": str(answer.ext["queueOffset"]),
        "commitLogOffset": str(int(answer.ext["msgId"][16:], 16)),
        "fromTransactionCheck": "false",
        "msgId": key,
    }


def pull(wire: Wire, queue_id: int, offset: int) -> list[StoredMessage]:
    """What is at the offset; AssertionError when it cannot be read though the queue continues."""
    answer = wire.request(PULL, pull_ext(TOPIC, queue_id, offset, consumerGroup=GROUP))
    return decode_records(answer.body) if answer.code == 0 else []


def max_offset(wire: Wire, queue_id: int) -> int:
    answer = wire.request(MAX_OFFSET, {"topic": TOPIC, "queueId": str(queue_id)})
    return int(answer.ext["offset"])


def group_offset(wire: Wire, queue_id: int) -> int:
    """0 while the group has committed none."""
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id)}
    answer = wire.request(QUERY_OFFSET, fields)
    return int(answer.ext["offset"]) if answer.code == 0 else 0


def make_topic(wire: Wire) -> None:
    fields = {"topic": TOPIC, "defaultTopic": "TBW102", "perm": "6", "topicSysFlag": "0"}
    numbers = {"readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES), "order": "false"}
    answer = wire.request(CREATE_TOPIC, {**fields, **numbers, "topicFilterType": "SINGLE_TAG"})
    assert answer.code == 0, answer.header
