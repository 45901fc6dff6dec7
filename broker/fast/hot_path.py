"""Bytes of one connection in, answers out: all frames of a read together.

Plain sends are gathered and put into the store in one call, with one clock and one lock; their
answers come from templates. Pulls are answered in place. Everything else goes the general way,
and what goes this one is answered and stored with the same bytes (`handlers.send_rules`).
A class with the same `feed` can be compiled and take this one's place.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter, length_hint
from time import perf_counter
from typing import Final

from aerobee.broker.auth.admission import Admission
from aerobee.broker.auth.verdicts import Principal
from aerobee.broker.base.turns import MESSAGES_S
from aerobee.broker.fast.hot_codecs import PULL, SEND, UNUSUAL, Head, heads_by_codec
from aerobee.broker.fast.signed_codecs import signed_heads_by_codec
from aerobee.broker.handlers.pull.one_pull import PutOff
from aerobee.broker.handlers.pull.pull import Pulls
from aerobee.broker.handlers.send import Sends
from aerobee.broker.handlers.send_rules import (
    LATE,
    STORED,
    UNUSUAL_NAMES,
    UNUSUAL_SYS_FLAGS,
    code_of,
    flush_failed_text,
)
from aerobee.broker.net.answers import LENGTH_PREFIXES, to_json
from aerobee.broker.net.connection import Connection
from aerobee.broker.net.general_feed import ANSWERS_MAX, ANYTHING, NOTHING, PUT_OFF, GeneralFeed
from aerobee.broker.net.outbox import JOIN_MAX, Part
from aerobee.broker.net.requests import Dispatcher, failure_text, log_refusal
from aerobee.broker.store.log.facts import Facts
from aerobee.broker.store.log.rows import EncodedRows, Row, message_of
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.broker.store.results import PutResult, PutStatus
from aerobee.protocol.files import properties
from aerobee.protocol.files.ids import encode_host, offset_message_id
from aerobee.protocol.files.properties import NAME_END, PAIR_END
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.command import JSON, ONEWAY_FLAG, RESPONSE_FLAG, Command
from aerobee.protocol.wire.frame import RawFrame, encode_frame

_QUEUE, _SIZE = itemgetter(0), itemgetter(3)  # of a fact
NO_HEAD: Final[Head] = (0, bytes, 0)
NO_QUEUES: Final[dict[int, ConsumeQueue]] = {}
_UNIQUE: Final = properties.UNIQ_KEY + NAME_END
_NO_WAIT: Final = f"{properties.WAIT}{NAME_END}false"
KEY_MAX: Final = 256  # a unique key with which an answer surely has one of LENGTH_PREFIXES

# Opaque, queue id, flag of the frame, whether the answer waits for the disk, unique key.
Mark = tuple[int, int, int, bool, str]
Run = tuple[int, int, float]  # of sends: their codec, their code, when it began
Stored = tuple[Mark, int, int, int]  # a message's physical and queue offset, its record's end


class HotPath(GeneralFeed):
    """The feed of a broker's connection."""

    def __init__(
        self,
        connection: Connection,
        dispatcher: Dispatcher,
        frame_size_max: int,
        sends: Sends,
        pulls: Pulls,
    ) -> None:
        super().__init__(connection, dispatcher, frame_size_max)
        broker = sends.broker
        self._pulls = pulls
        self._store = broker.store
        self._stats = broker.stats
        self._sends = sends
        self._heads = signed_heads_by_codec() if broker.guard.is_on else heads_by_codec()
        self._born_host = encode_host(*connection.peer)
        self._store_host = broker.addresses.store_host(connection.peer, connection.local)
        self._id_head = self._store_host.hex().upper().encode()
        # A record with IPv6 hosts is not a plain one.
        self._is_plain_host = len(self._born_host) == len(self._store_host) == 8
        self._latencies = dispatcher.latencies
        self._admission = Admission(broker.guard, connection) if broker.guard.is_on else None
        self._put_off: tuple[RawFrame, Principal] | None = None  # a pull, and who asked
        self._admits = self._admission.send_check() if self._admission else None

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
            if not length_hint(remaining):  # a pull comes alone, as a rule
                break
        if len(out) < 2 or size > JOIN_MAX:
            return out
        return (b"".join(out),)

    def _send_run(self, remaining: Iterator[RawFrame], out: list[Part]) -> RawFrame | None:
        """Put the plain sends that come next; the frame after them, if there is one. Those of one
        run have the same codec and code.

        One loop without calls of ours: this is where the broker spends its time.
        """
        started = perf_counter()
        plain, added = self._sends.plain, self._sends.added
        added_to_open = PAIR_END + added  # to a text whose last pair is not ended
        born_host, store_host = self._born_host, self._store_host
        puts_wait = self._store.puts_wait
        admits = self._admits
        region, trace_on, cluster, pop_ck, delay, timer, half = UNUSUAL_NAMES
        rows: list[Row] = []
        marks: list[Mark] = []
        run_codec, head_size, run_head = -1, 0, b""
        for frame in remaining:
            codec, header, body = frame
            if codec != run_codec or header[:head_size] != run_head:
                if rows:
                    break
                head_size, table = self._heads[codec]
                run_codec, run_head = codec, header[:head_size]
                kind, decode, code = table.get(run_head, NO_HEAD)
                if kind != SEND:
                    break
            try:
                hot = decode(header)
            except UNUSUAL:
                break
            fields = hot.extFields
            flag = hot.flag
            queue_id = fields.e
            text = fields.i
            queue = plain.get(fields.b, NO_QUEUES).get(queue_id)
            before, has_key, key = text.rpartition(_UNIQUE)
            if (
                queue is None
                or fields.m
                or fields.f & UNUSUAL_SYS_FLAGS
                or flag & RESPONSE_FLAG
                or delay in text
                or cluster in text
                # The other names have one, which is found faster than each of them.
                or (
                    ("_" in before or "_" in key)
                    and (
                        timer in text
                        or half in text
                        or pop_ck in text
                        or region in text
                        or trace_on in text
                    )
                )
            ):
                break
            if has_key:
                key = key.partition(PAIR_END)[0]
                if not key or (before and before[-1] != PAIR_END):
                    break  # an empty one, or another's name ends so
            # The last look: what is admitted here must not be asked about again.
            if admits is not None and not admits(code, fields, hot.content, body):
                break
            if not has_key:
                key = self._sends.unique_ids.next()
                text = properties.put(text, properties.UNIQ_KEY, key)
            rows.append(
                (
                    queue,
                    body,
                    text + (added if text[-1] == PAIR_END else added_to_open),
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
            waits = puts_wait and (
                _NO_WAIT not in text or properties.get(text, properties.WAIT) != "false"
            )
            marks.append((hot.opaque, queue_id, flag, waits, key))
        else:
            frame = None
        if rows:
            self._put((run_codec, code, started), rows, marks, out)
        return frame

    def _put(
        self, run: Run, rows: list[Row] | EncodedRows, marks: Sequence[Mark], out: list[Part]
    ) -> None:
        """Store the messages of a run and answer those that need not wait for the disk."""
        facts: Facts = []
        failure = ""
        try:
            if self._is_plain_host:
                facts = self._store.put_rows(rows)
        except Exception as error:  # the store's own answer to bad messages is a status
            failure = failure_text(run[1], self.connection, error)
        self._go_on(run, rows, marks, facts, failure, out)

    def _go_on(
        self,
        run: Run,
        rows: list[Row] | EncodedRows,
        marks: Sequence[Mark],
        facts: Facts,
        failure: str,
        out: list[Part],
    ) -> None:
        """The same, once the store has taken the first ones as they were."""
        results: list[PutResult] = []
        if len(facts) < len(rows) and not failure:
            try:
                results = self._store.put([message_of(row) for row in rows[len(facts) :]])
            except Exception as error:
                failure = failure_text(run[1], self.connection, error)
        waiting: list[Stored] = []
        if facts:
            self._count(facts)
            self._answer_rows(run, marks, facts, out, waiting)
        if failure:
            for mark in marks[len(facts) :]:
                self._refuse(run, mark, ResponseCode.SYSTEM_ERROR, {}, failure, out)
        if results:
            self._answer_results(
                run, rows[len(facts) :], marks[len(facts) :], results, out, waiting
            )
        if waiting:
            self._wait(run, waiting)
        if len(marks) > len(waiting):
            _, code, started = run
            self._latencies[code].add_many(perf_counter() - started, len(marks) - len(waiting))

    def _answer_rows(
        self,
        run: Run,
        marks: Sequence[Mark],
        facts: Facts,
        out: list[Part],
        waiting: list[Stored],
    ) -> None:
        """Answers to messages that the store took as they were."""
        answers, id_head, prefixes = self._sends.answers, self._id_head, LENGTH_PREFIXES
        template = answers.json_template(id_head)
        codec = run[0]
        for mark, (_, queue_offset, offset, size, _, _, _) in zip(marks, facts, strict=False):
            opaque, queue_id, flag, waits, key = mark
            if waits:
                waiting.append((mark, offset, queue_offset, offset + size))
            elif flag & ONEWAY_FLAG:
                continue
            elif codec == JSON and len(key) < KEY_MAX:
                header = template % (offset, queue_id, queue_offset, to_json(key), opaque)
                out.append(prefixes[len(header)])
                out.append(header)
            else:
                out.append(
                    answers.stored(codec, opaque, id_head, offset, queue_id, queue_offset, key)
                )

    def _answer_results(
        self,
        run: Run,
        rows: list[Row],
        marks: Sequence[Mark],
        results: list[PutResult],
        out: list[Part],
        waiting: list[Stored],
    ) -> None:
        """Answers to messages that went the store's general way."""
        for row, mark, result in zip(rows, marks, results, strict=True):
            offset, queue_offset = result.physical_offset, result.queue_offset
            if not result.ok:
                fixed = self._sends.answers.fixed
                self._refuse(run, mark, code_of(result.status), fixed, result.reason, out)
                continue
            self._stats.add_put(row[0].topic, 1, result.size)
            if mark[3]:
                waiting.append((mark, offset, queue_offset, result.end_offset))
            elif not mark[2] & ONEWAY_FLAG:
                out.append(self._stored_answer(run, mark, offset, queue_offset))

    def _stored_answer(
        self, run: Run, mark: Mark, physical_offset: int, queue_offset: int
    ) -> bytes:
        opaque, queue_id, _, _, key = mark
        return self._sends.answers.stored(
            run[0], opaque, self._id_head, physical_offset, queue_id, queue_offset, key
        )

    def _count(self, facts: Facts) -> None:
        """Statistics: one call for a run to one topic whose messages are about of one size."""
        topics = {queue.topic for queue in set(map(_QUEUE, facts))}
        sizes = set(map(_SIZE, facts))
        if len(topics) == 1 and min(sizes).bit_length() == max(sizes).bit_length():
            (_, _, begin, *_), (_, _, last, size, *_) = (
                facts[0],
                facts[-1],
            )  # side by side in the log
            self._stats.add_put(topics.pop(), len(facts), last + size - begin, len(facts))
        else:
            for queue, _, _, size, *_ in facts:
                self._stats.add_put(queue.topic, 1, size)

    def _wait(self, run: Run, waiting: list[Stored]) -> None:
        """Answer these once the last of them is safe, all in one write."""
        self.connection.waits_begin(len(waiting))
        self._store.when_durable(waiting[-1][3], partial(self._durable, run, waiting))

    def _durable(self, run: Run, waiting: list[Stored], status: PutStatus) -> None:
        codec, code, started = run
        self._latencies[code].add_many(perf_counter() - started, len(waiting))
        answers = self._sends.answers
        out: list[Part] = []
        if status is PutStatus.PUT_OK:
            out, late = self._stored_answers(run, waiting), []
        else:
            late = waiting
        for mark, physical_offset, queue_offset, _ in late:
            opaque, queue_id, flag, _, key = mark
            if flag & ONEWAY_FLAG:
                continue
            if status in STORED:  # but not in time: the answer says where, all the same
                message_id = offset_message_id(self._store_host, physical_offset)
                ext = answers.fields(message_id, str(queue_id), str(queue_offset), key)
                answer = Command(code_of(status), ext, b"", opaque, RESPONSE_FLAG)
                answer.codec, answer.remark = codec, LATE[status]
                out.append(encode_frame(answer))
            else:
                text = flush_failed_text(status)
                self._refuse(run, mark, code_of(status), answers.fixed, text, out)
        self.connection.waits_end(len(waiting))
        if out:
            self.connection.write((b"".join(out),))

    def _stored_answers(self, run: Run, waiting: list[Stored]) -> list[Part]:
        """Answers to messages that are safe now."""
        return [
            self._stored_answer(run, mark, physical_offset, queue_offset)
            for mark, physical_offset, queue_offset, _ in waiting
            if not mark[2] & ONEWAY_FLAG
        ]

    def _refuse(
        self,
        run: Run,
        mark: Mark,
        answer_code: int,
        ext: dict[str, str],
        remark: str,
        out: list[Part],
    ) -> None:
        codec, code, _ = run
        opaque, _, flag, _, _ = mark
        answer = Command(answer_code, ext, b"", opaque, RESPONSE_FLAG, remark, codec=codec)
        is_oneway = bool(flag & ONEWAY_FLAG)
        log_refusal(self.connection, code, is_oneway, answer)
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
                if not claim and self._turns.is_over(MESSAGES_S):
                    return PUT_OFF
                principal, fields = None, hot.extFields
                if self._admission is not None:
                    if self._put_off is not None and self._put_off[0] is frame:
                        principal = self._put_off[1]  # it was admitted when it came
                    else:
                        group = fields.consumer_group
                        principal = self._admission.puller(hot.code, frame, fields.topic, group)
                    self._put_off = None
                    if principal is None:
                        return self._general(frame, out, claim)
                started = perf_counter()
                try:
                    parts = self._pulls.pull(
                        self.connection,
                        codec,
                        hot.opaque,
                        hot.flag,
                        hot.code,
                        fields,
                        may_wait=claim != ANYTHING,
                        principal=principal,
                    )
                except PutOff:
                    if principal is not None:
                        self._put_off = frame, principal
                    return PUT_OFF
                out += parts
                self._latencies[hot.code].add(perf_counter() - started)
                return sum(map(len, parts))
        return self._general(frame, out, claim)
