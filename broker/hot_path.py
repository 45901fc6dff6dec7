"""Bytes of one connection in, answers out: all frames of a read together.

Plain sends are gathered and put into the store in one call, with one clock and one lock; their
answers come from templates. Pulls are answered in place. Everything else goes the general way.
A class with the same `feed` can be compiled and take this one's place.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Final

import structlog

from aerobee.broker.answers import LENGTH_PREFIXES
from aerobee.broker.broker import Broker
from aerobee.broker.connection import JOIN_MAX, Connection, Part
from aerobee.broker.dispatch import ERROR_TEXT_MAX, Dispatcher, say_refused
from aerobee.broker.general_feed import ANSWERS_MAX, ANYTHING, NOTHING, PUT_OFF, GeneralFeed
from aerobee.broker.handlers.pull import PutOff
from aerobee.broker.handlers.send import DISK_TIMEOUT_REMARK, STORED, code_of, flush_failed_text
from aerobee.broker.hot_codecs import PULL, SEND, UNUSUAL, heads_by_codec
from aerobee.broker.store.commitlog import Fact, Row, message_of
from aerobee.broker.store.results import PutResult, PutStatus, RefusedPut
from aerobee.protocol import properties
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.command import JSON, ONEWAY_FLAG, RESPONSE_FLAG, Command
from aerobee.protocol.frame import RawFrame, encode_frame
from aerobee.protocol.ids import encode_host, offset_message_id
from aerobee.protocol.record import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK

log = structlog.get_logger("aerobee.hot_path")

UNUSUAL_SYS_FLAGS: Final = TRANSACTION_MASK | BORN_HOST_V6 | STORE_HOST_V6

# Codec, opaque, queue id, flag of the frame, whether the answer waits for the disk.
Mark = tuple[int, int, int, int, bool]
Stored = tuple[Mark, int, int, int]  # a message's physical and queue offset, its record's end


class HotPath(GeneralFeed):
    """The feed of a broker's connection."""

    def __init__(
        self, connection: Connection, dispatcher: Dispatcher, frame_size_max: int, broker: Broker
    ) -> None:
        super().__init__(connection, dispatcher, frame_size_max)
        sends = broker.sends
        self._pulls = broker.pulls
        self._store = broker.store
        self._stats = broker.stats
        self._sends = sends
        self._heads = heads_by_codec()
        self._born_host = encode_host(*connection.peer)
        self._store_host = broker.addresses.store_host(connection.peer, connection.local)
        self._id_head = self._store_host.hex().upper().encode()
        # A record with IPv6 hosts is not a plain one.
        self._is_plain_host = len(self._born_host) == len(self._store_host) == 8
        self._sync_flush = bool(broker.store.sync_flush)
        self._send_times = dispatcher.latencies[RequestCode.SEND_MESSAGE_V2]
        self._pull_times = dispatcher.latencies[RequestCode.PULL_MESSAGE]

    def _answer(self, frames: Sequence[RawFrame], claim: int) -> Sequence[Part]:
        out: list[Part] = []
        size = 0
        remaining = iter(frames)
        while (frame := self._send_run(remaining, out)) is not None:
            answered = self._other(frame, out, claim)
            if answered == PUT_OFF:
                self.kept_back = [frame, *remaining]
                break
            if self._broken:
                break
            claim = NOTHING
            size += answered
            if size > ANSWERS_MAX or self.connection.is_full:
                self.kept_back = list(remaining)
                break
        if len(out) < 2 or size > JOIN_MAX:
            return out
        return (b"".join(out),)

    def _send_run(self, remaining: Iterator[RawFrame], out: list[Part]) -> RawFrame | None:
        """Put the plain sends that come next; the frame after them, if there is one.

        One loop without calls of ours: this is where the broker spends its time.
        """
        started = perf_counter()
        heads, plain, added = self._heads, self._sends.plain, self._sends.added
        queues = self._store.queue_table.table
        born_host, store_host = self._born_host, self._store_host
        sync_flush = self._sync_flush
        rows: list[Row] = []
        marks: list[Mark] = []
        for frame in remaining:
            codec, header, body = frame
            head_size, table = heads[codec]
            head = table.get(header[:head_size])
            if head is None or head[0] != SEND:
                break
            try:
                hot = head[1](header)
            except UNUSUAL:
                break
            fields = hot.extFields
            flag = hot.flag
            topic = fields.b
            queue_id = fields.e
            text = fields.i
            queue = queues.get((topic, queue_id))
            if (
                queue is None
                or not queue_id < plain.get(topic, 0)
                or fields.m
                or fields.f & UNUSUAL_SYS_FLAGS
                or flag & RESPONSE_FLAG
                or not queue.topic_field
                or "DELAY" in text
                or "TIMER_" in text
                or "TRAN_MSG" in text
                or "POP_CK" in text
                or "MSG_REGION" in text
            ):
                break
            if text[-1:] != "\x02" and text:
                text += "\x02"
            if "\x02UNIQ_KEY\x01" not in text and text[:9] != "UNIQ_KEY\x01":
                text = f"{text}UNIQ_KEY\x01{self._sends.unique_ids.next()}\x02"
            rows.append(
                (
                    queue,
                    body,
                    text + added,
                    fields.h,
                    fields.f,
                    fields.g,
                    born_host,
                    store_host,
                    fields.j,
                    0,
                )
            )
            # Another property may end in WAIT: only then is it worth to look closer.
            waits = sync_flush and (
                "WAIT\x01false" not in text or properties.get(text, properties.WAIT) != "false"
            )
            marks.append((codec, hot.opaque, queue_id, flag, waits))
        else:
            frame = None
        if rows:
            self._put(rows, marks, out, started)
        return frame

    def _put(self, rows: list[Row], marks: list[Mark], out: list[Part], started: float) -> None:
        """Store the messages of a run and answer those that need not wait for the disk."""
        facts: list[Fact] = []
        results: list[PutResult] = []
        try:
            if self._is_plain_host:
                facts = self._store.put_rows(rows)
            if len(facts) < len(rows):
                results = self._store.put([message_of(row) for row in rows[len(facts) :]])
        except Exception as error:  # the store's own answer to bad messages is a status
            log.exception("sends failed", peer=self.connection.name, messages=len(rows))
            text = f"{type(error).__name__}: {error}"[:ERROR_TEXT_MAX]
            results = [RefusedPut(PutStatus.UNKNOWN_ERROR, text)] * (len(rows) - len(facts))
        waiting: list[Stored] = []
        if facts:
            self._count(facts)
            self._answer_rows(marks, facts, out, waiting)
        if results:
            self._answer_results(rows[len(facts) :], marks[len(facts) :], results, out, waiting)
        if waiting:
            self._wait(waiting, started)
        if len(marks) > len(waiting):
            self._send_times.add_many(perf_counter() - started, len(marks) - len(waiting))

    def _answer_rows(
        self, marks: list[Mark], facts: list[Fact], out: list[Part], waiting: list[Stored]
    ) -> None:
        """Answers to messages that the store took as they were."""
        answers, id_head, prefixes = self._sends.answers, self._id_head, LENGTH_PREFIXES
        template = answers.json_template
        for mark, (_, queue_offset, offset, size, _, _, _) in zip(marks, facts, strict=False):
            codec, opaque, queue_id, flag, waits = mark
            if waits:
                waiting.append((mark, offset, queue_offset, offset + size))
            elif flag & ONEWAY_FLAG:
                continue
            elif codec == JSON:
                header = template % (id_head, offset, queue_id, queue_offset, opaque)
                out.append(prefixes[len(header)])
                out.append(header)
            else:
                out.append(answers.answer(codec, opaque, id_head, offset, queue_id, queue_offset))

    def _answer_results(
        self,
        rows: list[Row],
        marks: list[Mark],
        results: list[PutResult],
        out: list[Part],
        waiting: list[Stored],
    ) -> None:
        """Answers to messages that went the store's general way."""
        for row, mark, result in zip(rows, marks, results, strict=True):
            offset, queue_offset = result.physical_offset, result.queue_offset
            if not result.ok:
                self._refuse(mark, code_of(result.status), result.reason, out)
                continue
            self._stats.add_put(row[0].topic, 1, result.size)
            if mark[4]:
                waiting.append((mark, offset, queue_offset, result.end_offset))
            elif not mark[3] & ONEWAY_FLAG:
                out.append(self._stored_answer(mark, offset, queue_offset))

    def _stored_answer(self, mark: Mark, physical_offset: int, queue_offset: int) -> bytes:
        codec, opaque, queue_id, _, _ = mark
        return self._sends.answers.answer(
            codec, opaque, self._id_head, physical_offset, queue_id, queue_offset
        )

    def _count(self, facts: list[Fact]) -> None:
        """Statistics: one call for a run to one topic."""
        topics = {fact[0].topic for fact in facts}
        if len(topics) == 1:
            last = facts[-1]
            size = last[2] + last[3] - facts[0][2]
            self._stats.add_put(facts[0][0].topic, len(facts), size)
        else:
            for queue, _, _, size, *_ in facts:
                self._stats.add_put(queue.topic, 1, size)

    def _wait(self, waiting: list[Stored], started: float) -> None:
        """Answer these once the last of them is on disk, all in one write."""
        self.connection.waits_begin(len(waiting))
        self._store.when_durable(waiting[-1][3], partial(self._durable, waiting, started))

    def _durable(self, waiting: list[Stored], started: float, status: PutStatus) -> None:
        self._send_times.add_many(perf_counter() - started, len(waiting))
        out: list[Part] = []
        for mark, physical_offset, queue_offset, _ in waiting:
            if mark[3] & ONEWAY_FLAG:
                continue
            if status is PutStatus.PUT_OK:
                out.append(self._stored_answer(mark, physical_offset, queue_offset))
            elif status in STORED:
                self._answer_late(mark, physical_offset, queue_offset, status, out)
            else:
                self._refuse(mark, code_of(status), flush_failed_text(status), out)
        self.connection.waits_end(len(waiting))
        if out:
            self.connection.write((b"".join(out),))

    def _answer_late(
        self,
        mark: Mark,
        physical_offset: int,
        queue_offset: int,
        status: PutStatus,
        out: list[Part],
    ) -> None:
        """Stored, but not on disk in time: the answer carries where, all the same."""
        codec, opaque, queue_id, _, _ = mark
        ext = self._sends.answer_ext | {
            "msgId": offset_message_id(self._store_host, physical_offset),
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
        }
        answer = Command(
            code_of(status), ext, b"", opaque, RESPONSE_FLAG, DISK_TIMEOUT_REMARK, codec=codec
        )
        out.append(encode_frame(answer))

    def _refuse(self, mark: Mark, code: int, remark: str, out: list[Part]) -> None:
        codec, opaque, _, flag, _ = mark
        ext = dict(self._sends.answer_ext)
        answer = Command(code, ext, b"", opaque, RESPONSE_FLAG, remark, codec=codec)
        is_oneway = bool(flag & ONEWAY_FLAG)
        say_refused(self.connection, RequestCode.SEND_MESSAGE_V2, is_oneway, answer)
        if not is_oneway:
            out.append(encode_frame(answer))

    def _other(self, frame: RawFrame, out: list[Part], claim: int) -> int:
        """Answer one frame that is no plain send; how many bytes of answer there are."""
        codec, header, _ = frame
        head_size, table = self._heads[codec]
        head = table.get(header[:head_size])
        if head is not None and head[0] == PULL:
            try:
                hot = head[1](header)
            except UNUSUAL:
                return self._general(frame, out, claim)
            if not hot.flag & RESPONSE_FLAG:
                if not claim and self._turns.is_over():
                    return PUT_OFF
                started = perf_counter()
                try:
                    parts = self._pulls.pull(
                        self.connection,
                        codec,
                        hot.opaque,
                        hot.flag,
                        hot.code,
                        hot.extFields,
                        may_wait=claim != ANYTHING,
                    )
                except PutOff:
                    return PUT_OFF
                out += parts
                self._pull_times.add(perf_counter() - started)
                return sum(map(len, parts))
        return self._general(frame, out, claim)
