"""Bytes of one connection in, answers out: all frames of a read together.

Plain sends are gathered and put into the store in one call, with one clock and one lock; their
answers come from templates. Pulls are answered in place. Everything else goes the general way.
A class with the same `feed` can be compiled and take this one's place.
"""

from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Final

import structlog

from aerobee.broker.answers import LENGTH_PREFIXES
from aerobee.broker.broker import Broker
from aerobee.broker.connection import Connection, Part
from aerobee.broker.dispatch import ERROR_TEXT_MAX, Dispatcher
from aerobee.broker.general_feed import ANSWERS_MAX, GeneralFeed
from aerobee.broker.handlers.send import DISK_TIMEOUT_REMARK, STORED, code_of, flush_failed_text
from aerobee.broker.hot_codecs import PULL, SEND, UNUSUAL, heads_by_codec
from aerobee.broker.store.results import PutResult, PutStatus, RefusedPut
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.command import JSON, ONEWAY_FLAG, RESPONSE_FLAG, Command
from aerobee.protocol.frame import RawFrame, encode_frame
from aerobee.protocol.ids import encode_host, offset_message_id
from aerobee.protocol.record import TRANSACTION_MASK, Message

log = structlog.get_logger("aerobee.hot_path")

JOIN_MAX: Final = 64 << 10  # up to here one buffer is cheaper to write than many

# Codec, opaque, queue id, flag of the frame, whether the answer waits for the disk.
Mark = tuple[int, int, int, int, bool]


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
        self._sync_flush = bool(broker.store.sync_flush)
        self._send_times = dispatcher.latencies[RequestCode.SEND_MESSAGE_V2]
        self._pull_times = dispatcher.latencies[RequestCode.PULL_MESSAGE]

    def _answer(self, frames: Sequence[RawFrame]) -> Sequence[Part]:
        out: list[Part] = []
        size = index = 0
        count = len(frames)
        while index < count:
            index = self._send_run(frames, index, out)
            if index == count:
                break
            size += self._other(frames[index], out)
            index += 1
            if self._broken:
                break
            if size > ANSWERS_MAX:
                self.kept_back = frames[index:]
                break
        if len(out) < 2 or size > JOIN_MAX:
            return out
        return (b"".join(out),)

    def _send_run(self, frames: Sequence[RawFrame], index: int, out: list[Part]) -> int:
        """Put the plain sends that follow from `index` on; the index of the first other frame.

        One loop without calls of ours: this is where the broker spends its time.
        """
        started = perf_counter()
        heads, plain, added = self._heads, self._sends.plain, self._sends.added
        born_host, store_host = self._born_host, self._store_host
        sync_flush = self._sync_flush
        messages: list[Message] = []
        marks: list[Mark] = []
        for codec, header, body in frames[index:] if index else frames:
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
            queue_id = fields.e
            text = fields.i
            topic = plain.get(fields.b)
            if (
                topic is None
                or not 0 <= queue_id < topic.queue_nums
                or fields.m
                or fields.f & TRANSACTION_MASK
                or flag & RESPONSE_FLAG
                or "DELAY" in text
                or "TIMER_" in text
                or "TRAN_MSG" in text
                or "POP_CK" in text
                or "MSG_REGION" in text
            ):
                break
            if text[-1:] != "\x02" and text:
                text += "\x02"
            if "UNIQ_KEY\x01" not in text:
                text = f"{text}UNIQ_KEY\x01{self._sends.unique_ids.next()}\x02"
            messages.append(
                Message(
                    topic.name,
                    queue_id,
                    body,
                    text + added,
                    fields.h,
                    fields.f,
                    fields.g,
                    born_host,
                    store_host,
                    fields.j,
                )
            )
            waits = sync_flush and "WAIT\x01false" not in text
            marks.append((codec, hot.opaque, queue_id, flag, waits))
        if messages:
            self._put(messages, marks, out, started)
        return index + len(messages)

    def _put(
        self, messages: list[Message], marks: list[Mark], out: list[Part], started: float
    ) -> None:
        """Store the messages of a run and answer those that need not wait for the disk."""
        try:
            results: list[PutResult] = self._store.put(messages)
        except Exception as error:  # the store's own answer to bad messages is a status
            log.exception("sends failed", peer=self.connection.name, messages=len(messages))
            text = f"{type(error).__name__}: {error}"[:ERROR_TEXT_MAX]
            results = [RefusedPut(PutStatus.UNKNOWN_ERROR, text) for _ in messages]
        self._count(messages, results)
        ok = PutStatus.PUT_OK
        answers, id_head, prefixes = self._sends.answers, self._id_head, LENGTH_PREFIXES
        template = answers.json_template
        waiting: list[tuple[PutResult, Mark]] = []
        for result, mark in zip(results, marks, strict=True):
            codec, opaque, queue_id, flag, waits = mark
            if result.status is not ok:
                self._refuse(mark, code_of(result.status), result.reason, out)
            elif waits:
                waiting.append((result, mark))
            elif flag & ONEWAY_FLAG:
                continue
            elif codec == JSON:
                header = template % (
                    id_head,
                    result.physical_offset,
                    queue_id,
                    result.queue_offset,
                    opaque,
                )
                out.append(prefixes[len(header)])
                out.append(header)
            else:
                out.append(
                    answers.answer(
                        codec,
                        opaque,
                        id_head,
                        result.physical_offset,
                        queue_id,
                        result.queue_offset,
                    )
                )
        if waiting:
            self._wait(waiting, started)
        if len(marks) > len(waiting):
            self._send_times.add_many(perf_counter() - started, len(marks) - len(waiting))

    def _count(self, messages: list[Message], results: list[PutResult]) -> None:
        """Statistics: one call for a run to one topic."""
        first = messages[0].topic
        last = results[-1]
        if last.status is PutStatus.PUT_OK and results[0].status is PutStatus.PUT_OK:
            size = last.physical_offset + last.size - results[0].physical_offset
            if all(message.topic is first for message in messages):
                self._stats.add_put(first, len(messages), size)
                return
        for message, result in zip(messages, results, strict=True):
            if result.ok:
                self._stats.add_put(message.topic, 1, result.size)

    def _wait(self, waiting: list[tuple[PutResult, Mark]], started: float) -> None:
        """Answer these once the last of them is on disk, all in one write."""
        self.connection.waits_begin(len(waiting))
        self._store.when_durable(
            waiting[-1][0].end_offset, partial(self._durable, waiting, started)
        )

    def _durable(
        self, waiting: list[tuple[PutResult, Mark]], started: float, status: PutStatus
    ) -> None:
        self._send_times.add_many(perf_counter() - started, len(waiting))
        out: list[Part] = []
        for result, mark in waiting:
            codec, opaque, queue_id, flag, _ = mark
            if flag & ONEWAY_FLAG:
                continue
            if status is PutStatus.PUT_OK:
                out.append(
                    self._sends.answers.answer(
                        codec,
                        opaque,
                        self._id_head,
                        result.physical_offset,
                        queue_id,
                        result.queue_offset,
                    )
                )
            elif status in STORED:
                self._answer_late(mark, result, status, out)
            else:
                self._refuse(mark, code_of(status), flush_failed_text(status), out)
        self.connection.waits_end(len(waiting))
        if out:
            self.connection.write((b"".join(out),))

    def _answer_late(
        self, mark: Mark, result: PutResult, status: PutStatus, out: list[Part]
    ) -> None:
        """Stored, but not on disk in time: the answer carries where, all the same."""
        codec, opaque, queue_id, _, _ = mark
        ext = self._sends.answer_ext | {
            "msgId": offset_message_id(self._store_host, result.physical_offset),
            "queueId": str(queue_id),
            "queueOffset": str(result.queue_offset),
        }
        answer = Command(
            code_of(status), ext, b"", opaque, RESPONSE_FLAG, DISK_TIMEOUT_REMARK, codec=codec
        )
        out.append(encode_frame(answer))

    def _refuse(self, mark: Mark, code: int, remark: str, out: list[Part]) -> None:
        codec, opaque, _, flag, _ = mark
        if not flag & ONEWAY_FLAG:
            ext = dict(self._sends.answer_ext)
            answer = Command(code, ext, b"", opaque, RESPONSE_FLAG, remark, codec=codec)
            out.append(encode_frame(answer))

    def _other(self, frame: RawFrame, out: list[Part]) -> int:
        """Answer one frame that is no plain send; how many bytes of answer there are."""
        codec, header, _ = frame
        head_size, table = self._heads[codec]
        head = table.get(header[:head_size])
        if head is not None and head[0] == PULL:
            try:
                hot = head[1](header)
            except UNUSUAL:
                return self._general(frame, out)
            if not hot.flag & RESPONSE_FLAG:
                started = perf_counter()
                parts = self._pulls.pull(
                    self.connection, codec, hot.opaque, hot.flag, hot.code, hot.extFields
                )
                out += parts
                self._pull_times.add(perf_counter() - started)
                return sum(map(len, parts))
        return self._general(frame, out)
