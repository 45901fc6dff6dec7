"""Batches of a read, parsed and answered in C: a part of `compiled_path`."""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from aerobee.broker.fast.hot_path import HotPath
from aerobee.broker.handlers.plain_batch import batch_rules
from aerobee.broker.handlers.send_batch import is_unusual_batch
from aerobee.broker.handlers.send_rules import LATE, STORED, code_of, flush_failed_text
from aerobee.broker.net.outbox import Part
from aerobee.broker.net.requests import failure_text
from aerobee.broker.store.log.facts import Facts, end_of_all
from aerobee.broker.store.results import PutStatus
from aerobee.protocol.files import properties
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import ONEWAY_FLAG, RESPONSE_FLAG, Command
from aerobee.protocol.wire.frame import encode_frame

if TYPE_CHECKING:
    from aerobee.broker.compiled import _hot

_BATCH_CODE: Final = int(RequestCode.SEND_BATCH_MESSAGE)
BATCHES_MAX: Final = 1024  # in one put
# A request: codec, opaque, flag, properties, queue, its messages' first queue offset and their ids,
# their number and bytes.
_Batch = tuple[int, int, int, str, Any, int, bytes, int, int]


class CompiledBatches(HotPath):
    """The part of a connection's feed that puts batches."""

    def _put_batches(
        self, remaining: _hot.Cursor, out: list[Part], most: int = BATCHES_MAX
    ) -> bool:
        """Put the next batches and answer them, even if the turn's limit is reached: deferred
        frames are read in Python. False: there is none, or the next one needs the general path."""
        sends = self._sends
        started = perf_counter()
        rows = remaining.batches(
            sends.plain,
            batch_rules(),
            self._runs.born_host,
            self._runs.store_host,
            sends.broker.settings.max_message_size,
            is_unusual_batch,
            most,
        )
        if rows is None:
            return False
        failure = ""
        facts: Facts = []
        try:
            facts = self._store.put_whole(rows, rows.topic)
            if not facts:  # some may still fit the file
                return most > 1 and self._put_batches(remaining, out, most=1)
        except Exception as error:
            failure = failure_text(_BATCH_CODE, self.connection, error)
        requests = rows.requests(self._runs.id_head)
        remaining.skip(len(requests))
        if failure:
            for request in requests:
                self._refuse_batch(request, ResponseCode.SYSTEM_ERROR, {}, failure, out)
        else:
            for _, _, _, _, queue, _, _, count, size in requests:
                self._sends.broker.stats.add_put(queue.topic, count, size)
            if self._store.puts_wait:  # for all: a batch that need not wait takes the general path
                self.connection.waits_begin(len(requests))
                durable = partial(self._batches_durable, requests, started)
                self._store.when_durable(end_of_all(facts), durable)
                return True
            self._answer_batches(requests, out)
        self._latencies[_BATCH_CODE].add_many(perf_counter() - started, len(requests))
        return True

    def _answer_batches(self, requests: list[_Batch], out: list[Part]) -> None:
        for codec, opaque, flag, text, queue, queue_offset, ids, _, _ in requests:
            if not flag & ONEWAY_FLAG:
                key = properties.get(text, properties.UNIQ_KEY) if text else None
                out.append(
                    self._sends.answers.stored_batch(
                        codec, opaque, ids, queue.queue_id, queue_offset, key
                    )
                )

    def _batches_durable(self, requests: list[_Batch], started: float, status: PutStatus) -> None:
        """As `SendRuns._durable`."""
        self._latencies[_BATCH_CODE].add_many(perf_counter() - started, len(requests))
        answers = self._sends.answers
        out: list[Part] = []
        if status is PutStatus.PUT_OK:
            self._answer_batches(requests, out)
        elif status in STORED:  # but not in time: the answer still has the offset
            for codec, opaque, flag, text, queue, queue_offset, ids, _, _ in requests:
                key = properties.get(text, properties.UNIQ_KEY) if text else None
                ext = answers.fields(ids.decode(), str(queue.queue_id), str(queue_offset), key)
                answer = Command(code_of(status), ext, b"", opaque, RESPONSE_FLAG, codec=codec)
                answer.remark = LATE[status]
                if not flag & ONEWAY_FLAG:
                    out.append(encode_frame(answer))
        else:
            for request in requests:
                text = flush_failed_text(status)
                self._refuse_batch(request, code_of(status), answers.fixed, text, out)
        self.connection.waits_end(len(requests))
        if out:
            self.connection.write((b"".join(out),))

    def _refuse_batch(
        self, request: _Batch, code: int, ext: dict[str, str], remark: str, out: list[Part]
    ) -> None:
        codec, opaque, flag, _, queue, _, _, _, _ = request
        mark = opaque, queue.queue_id, flag, False, ""
        self._runs.refuse((codec, _BATCH_CODE, 0.0), mark, code, ext, remark, out)
