"""Bytes of one connection in, answers out: all frames of a read together.

Plain sends are collected and put into the store in one call, with one clock reading and one lock
(`send_runs`). Pulls are answered in place. Everything else takes the general path. Both paths store
and answer the same bytes (`handlers.send_rules`). `compiled_path` has a class with the same `feed`.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import length_hint
from time import perf_counter
from typing import Final

from aerobee.broker.auth.admission import Admission
from aerobee.broker.auth.verdicts import Principal
from aerobee.broker.base.turns import MESSAGES_S
from aerobee.broker.fast.hot_codecs import PULL, SEND, UNUSUAL, Head, heads_by_codec
from aerobee.broker.fast.send_runs import Mark, SendRuns
from aerobee.broker.fast.signed_codecs import signed_heads_by_codec
from aerobee.broker.handlers.pull.one_pull import Deferred
from aerobee.broker.handlers.pull.pull import Pulls
from aerobee.broker.handlers.send import Sends
from aerobee.broker.handlers.send_rules import UNUSUAL_NAMES, UNUSUAL_SYS_FLAGS
from aerobee.broker.net.connection import Connection
from aerobee.broker.net.general_feed import ANSWERS_MAX, ANYTHING, DEFERRED, NOTHING, GeneralFeed
from aerobee.broker.net.outbox import JOIN_MAX, Part
from aerobee.broker.net.requests import Dispatcher
from aerobee.broker.store.log.rows import Row
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.protocol.files import properties
from aerobee.protocol.files.properties import NAME_END, PAIR_END
from aerobee.protocol.wire.command import RESPONSE_FLAG
from aerobee.protocol.wire.frame import RawFrame

NO_HEAD: Final[Head] = (0, bytes, 0)
NO_QUEUES: Final[dict[int, ConsumeQueue]] = {}
_UNIQUE: Final = properties.UNIQ_KEY + NAME_END
_NO_WAIT: Final = f"{properties.WAIT}{NAME_END}false"


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
        self._sends = sends
        self._runs = SendRuns(connection, dispatcher, sends)
        self._heads = signed_heads_by_codec() if broker.guard.is_on else heads_by_codec()
        self._latencies = dispatcher.latencies
        self._admission = Admission(broker.guard, connection) if broker.guard.is_on else None
        self._deferred: tuple[RawFrame, Principal] | None = None  # a deferred pull, and who sent it
        self._admits = self._admission.send_check() if self._admission else None

    def _answer(self, frames: Sequence[RawFrame], claim: int) -> Sequence[Part]:
        out: list[Part] = []
        size = 0
        remaining = iter(frames)
        while (frame := self._send_run(remaining, out)) is not None:
            answered = self._other(frame, out, claim)
            if answered == DEFERRED:
                self.kept_back = [frame, *remaining]
                break
            if self._broken:
                break
            size += answered
            if not length_hint(remaining):  # a pull usually comes alone
                break
            claim = NOTHING
            if size > ANSWERS_MAX or self.connection.is_full:
                self.kept_back = list(remaining)
                break
        if len(out) < 2 or size > JOIN_MAX:
            return out
        return (b"".join(out),)

    def _send_run(self, remaining: Iterator[RawFrame], out: list[Part]) -> RawFrame | None:
        """Put the plain sends that come next; returns the frame after them, if any. The sends of a
        run have the same codec and code.

        One loop without calls of our own functions: this is where the broker spends its time.
        """
        first = next(remaining, None)
        if first is None:
            return None
        run_codec, header, _ = first
        head_size, table = self._heads[run_codec]
        run_head = header[:head_size]
        kind, decode, code = table.get(run_head, NO_HEAD)
        if kind != SEND:
            return first
        started = perf_counter()
        plain, added = self._sends.plain, self._sends.added
        added_to_open = PAIR_END + added  # for a text whose last pair has no end mark
        runs = self._runs
        born_host, store_host = runs.born_host, runs.store_host
        puts_wait = self._store.puts_wait
        admits = self._admits
        region, trace_on, cluster, pop_ck, delay, timer, half = UNUSUAL_NAMES
        rows: list[Row] = []
        marks: list[Mark] = []
        topic, queues = "", NO_QUEUES  # of the previous send: the next one usually has the same
        for frame in chain((first,), remaining):
            codec, header, body = frame
            if codec != run_codec or header[:head_size] != run_head:
                break
            try:
                hot = decode(header)
            except UNUSUAL:
                break
            fields = hot.extFields
            flag = hot.flag
            queue_id = fields.e
            text = fields.i
            if fields.b != topic:
                topic = fields.b
                queues = plain.get(topic, NO_QUEUES)
            queue = queues.get(queue_id)
            before, has_key, key = text.rpartition(_UNIQUE)
            if (
                queue is None
                or fields.m
                or fields.f & UNUSUAL_SYS_FLAGS
                or flag & RESPONSE_FLAG
                or delay in text
                or cluster in text
                # The other names contain "_": a search for it is faster than one for each name.
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
                    break  # an empty key, or the end of another name
            # Last: a request that was admitted must not be checked twice.
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
            # The name of another property may end in WAIT: only then parse the text.
            waits = puts_wait and (
                _NO_WAIT not in text or properties.get(text, properties.WAIT) != "false"
            )
            marks.append((hot.opaque, queue_id, flag, waits, key))
        else:
            frame = None
        if rows:
            runs.put((run_codec, code, started), rows, marks, out)
        return frame

    def _other(self, frame: RawFrame, out: list[Part], claim: int) -> int:
        """Answer one frame that is no plain send; returns the size of the answer."""
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
                    return DEFERRED
                principal, fields = None, hot.extFields
                if self._admission is not None:
                    if self._deferred is not None and self._deferred[0] is frame:
                        principal = self._deferred[1]  # it was admitted when it came
                    else:
                        group = fields.consumer_group
                        principal = self._admission.puller(hot.code, frame, fields.topic, group)
                    self._deferred = None
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
                        claim != ANYTHING,
                        principal,
                    )
                except Deferred:
                    if principal is not None:
                        self._deferred = frame, principal
                    return DEFERRED
                out += parts
                self._latencies[hot.code].add(perf_counter() - started)
                return len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        return self._general(frame, out, claim)
