"""Runs of plain sends: put into the store in one call, answered at once or when durable.

A run is the sends of the same codec and code that `hot_path` has collected from one read. Their
answers come from templates.
"""

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from time import perf_counter
from typing import Final

from aerobee.broker.handlers.send import Sends
from aerobee.broker.handlers.send_rules import LATE, STORED, code_of, flush_failed_text
from aerobee.broker.net.answers import LENGTH_PREFIXES, to_json
from aerobee.broker.net.connection import Connection
from aerobee.broker.net.outbox import Part
from aerobee.broker.net.requests import Dispatcher, failure_text, log_refusal
from aerobee.broker.store.log.facts import Facts
from aerobee.broker.store.log.rows import EncodedRows, Row, message_of
from aerobee.broker.store.results import PutResult, PutStatus
from aerobee.protocol.files.ids import encode_host, offset_message_id
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.command import JSON, ONEWAY_FLAG, RESPONSE_FLAG, Command
from aerobee.protocol.wire.frame import encode_frame

_QUEUE, _SIZE = itemgetter(0), itemgetter(3)  # of a fact
KEY_MAX: Final = 256  # LENGTH_PREFIXES covers the answers with shorter unique keys

# Opaque, queue id, flag of the frame, whether the answer waits for the disk, unique key.
Mark = tuple[int, int, int, bool, str]
Run = tuple[int, int, float]  # codec and code of its sends, when it began
Stored = tuple[Mark, int, int, int]  # a message's physical and queue offset, its record's end


class SendRuns:
    """The runs of one connection."""

    def __init__(self, connection: Connection, dispatcher: Dispatcher, sends: Sends) -> None:
        self._connection = connection
        self._sends = sends
        self._store = sends.broker.store
        self._stats = sends.broker.stats
        self._latencies = dispatcher.latencies
        self.born_host = encode_host(*connection.peer)
        self.store_host = sends.broker.addresses.store_host(connection.peer, connection.local)
        self.id_head = self.store_host.hex().upper().encode()
        # Records with IPv6 hosts are not plain.
        self.is_plain_host = len(self.born_host) == len(self.store_host) == 8

    def put(
        self, run: Run, rows: list[Row] | EncodedRows, marks: Sequence[Mark], out: list[Part]
    ) -> None:
        """Store the messages of a run and answer those that do not wait for the disk."""
        facts: Facts = []
        failure = ""
        try:
            if self.is_plain_host:
                facts = self._store.put_rows(rows)
        except Exception as error:  # not for bad messages: for these the store returns a status
            failure = failure_text(run[1], self._connection, error)
        self.put_rest(run, rows, marks, facts, failure, out)

    def put_rest(
        self,
        run: Run,
        rows: list[Row] | EncodedRows,
        marks: Sequence[Mark],
        facts: Facts,
        failure: str,
        out: list[Part],
    ) -> None:
        """Put the messages after those that the store has accepted as rows, and answer all."""
        results: list[PutResult] = []
        if len(facts) < len(rows) and not failure:
            try:
                results = self._store.put([message_of(row) for row in rows[len(facts) :]])
            except Exception as error:
                failure = failure_text(run[1], self._connection, error)
        waiting: list[Stored] = []
        if facts:
            self._count(facts)
            self._answer_rows(run, marks, facts, out, waiting)
        if failure:
            for mark in marks[len(facts) :]:
                self.refuse(run, mark, ResponseCode.SYSTEM_ERROR, {}, failure, out)
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
        """Answer messages that the store has accepted as rows."""
        answers, id_head, prefixes = self._sends.answers, self.id_head, LENGTH_PREFIXES
        template = answers.json_template(id_head)
        codec = run[0]
        is_json = codec == JSON
        for mark, (_, queue_offset, offset, size, _, _, _) in zip(marks, facts, strict=False):
            opaque, queue_id, flag, waits, key = mark
            if waits:
                waiting.append((mark, offset, queue_offset, offset + size))
            elif flag & ONEWAY_FLAG:
                continue
            elif is_json and len(key) < KEY_MAX:
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
        """Answer messages that took the store's general path."""
        for row, mark, result in zip(rows, marks, results, strict=True):
            offset, queue_offset = result.physical_offset, result.queue_offset
            if not result.ok:
                fixed = self._sends.answers.fixed
                self.refuse(run, mark, code_of(result.status), fixed, result.reason, out)
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
            run[0], opaque, self.id_head, physical_offset, queue_id, queue_offset, key
        )

    def _count(self, facts: Facts) -> None:
        """Statistics: one call for a run to one topic with messages of similar size."""
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
        """Answer these in one write, once the last of them is durable."""
        self._connection.waits_begin(len(waiting))
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
            if status in STORED:  # but not in time: the answer still has the offset
                message_id = offset_message_id(self.store_host, physical_offset)
                ext = answers.fields(message_id, str(queue_id), str(queue_offset), key)
                answer = Command(code_of(status), ext, b"", opaque, RESPONSE_FLAG)
                answer.codec, answer.remark = codec, LATE[status]
                out.append(encode_frame(answer))
            else:
                text = flush_failed_text(status)
                self.refuse(run, mark, code_of(status), answers.fixed, text, out)
        self._connection.waits_end(len(waiting))
        if out:
            self._connection.write((b"".join(out),))

    def _stored_answers(self, run: Run, waiting: list[Stored]) -> list[Part]:
        """Answers to messages that are durable now."""
        return [
            self._stored_answer(run, mark, physical_offset, queue_offset)
            for mark, physical_offset, queue_offset, _ in waiting
            if not mark[2] & ONEWAY_FLAG
        ]

    def refuse(
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
        log_refusal(self._connection, code, is_oneway, answer)
        if not is_oneway:
            out.append(encode_frame(answer))
