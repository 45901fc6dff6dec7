"""The hot path with its plain sends in C (`broker.compiled`): same answers, same files.

Frames are cut there, and what comes next in a read is taken there as far as it is plain. The rest,
and whatever the store does not take at once, goes on in Python, from the same frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast, overload

from aerobee.broker.auth.verdicts import proven
from aerobee.broker.compiled import hot
from aerobee.broker.fast.compiled_batches import CompiledBatches
from aerobee.broker.fast.hot_codecs import JSON_HEAD_SIZE, JSON_HEADS, PULL
from aerobee.broker.fast.hot_path import Mark, Run, Stored
from aerobee.broker.fast.repeated_pulls import RepeatedPulls
from aerobee.broker.handlers.pull.one_pull import PutOff
from aerobee.broker.handlers.pull.pull import Pulls
from aerobee.broker.handlers.send import Sends
from aerobee.broker.handlers.send_rules import UNUSUAL_NAMES, UNUSUAL_SYS_FLAGS
from aerobee.broker.net.answers import SendAnswers, pieces_of
from aerobee.broker.net.connection import Connection
from aerobee.broker.net.outbox import Part
from aerobee.broker.net.requests import Dispatcher, failure_text
from aerobee.broker.store.log.facts import Facts
from aerobee.protocol.files import properties
from aerobee.protocol.files.properties import CRC32, NAME_END
from aerobee.protocol.wire.command import JSON
from aerobee.protocol.wire.frame import FrameDecoder, RawFrame

if TYPE_CHECKING:
    from aerobee.broker.compiled import _hot

_SEND, _BATCH, _NO_MORE = 1, 2, -1  # kinds of frames
SECRETS_MAX: Final = 4  # of a user whose signatures are checked in C
_UNIQUE: Final = f"{properties.UNIQ_KEY}{NAME_END}".encode()
_NO_WAIT: Final = f"{properties.WAIT}{NAME_END}false".encode()
_NAMES: Final = tuple(name.encode() for name in (*UNUSUAL_NAMES, CRC32))


@lru_cache(maxsize=64)
def rules(added: str) -> _hot.Rules:
    """What makes a send unusual; `added`: the properties that every message gets."""
    make: type[_hot.Rules] = _compiled().Rules
    return make(_UNIQUE, _NO_WAIT, _NAMES, UNUSUAL_SYS_FLAGS, added.encode())


@lru_cache(maxsize=1024)
def _answers(answers: SendAnswers, id_head: bytes) -> _hot.Answers:
    """`id_head`: that of the address by which clients reach us; there are few."""
    pieces = pieces_of(answers.json_template(id_head))
    make: type[_hot.Answers] = _compiled().Answers
    return make(pieces, partial(answers.form, id_head))


def _compiled() -> Any:
    assert hot is not None, "this installation has no compiled part"
    return hot


class CutDecoder(FrameDecoder):
    """Cuts frames in C, one when it is asked for."""

    __slots__ = ("_cut",)

    def __init__(self, frame_size_max: int) -> None:
        super().__init__(frame_size_max)
        self._cut = _compiled().Frames

    def feed(self, data: bytes) -> list[RawFrame]:
        if self.error is not None:
            return []
        if self._buffer:
            if len(self._buffer) + len(data) < self._wanted:
                self._buffer += data
                return []
            data = b"".join((self._buffer, data))
            self._buffer.clear()
        frames = self._cut(data, self.frame_size_max - 4)
        self._wanted = frames.wanted
        if frames.bad:
            super().feed(data[frames.stop :])  # which says what is wrong with it
        elif frames.stop < len(data):
            self._buffer += data[frames.stop :] if frames.stop else data
        return cast(list[RawFrame], frames)  # as far as it is used: to go through, and its length


class _Marks(Sequence[Mark]):
    """The marks of a run of C's: made only for those that the store did not take there."""

    def __init__(self, run: _hot.Run) -> None:
        self.run = run

    def __len__(self) -> int:
        return len(self.run)

    def __iter__(self) -> Iterator[Mark]:
        return iter(self.run.marks())  # once: `Sequence` would make all of them for each

    @overload
    def __getitem__(self, which: int) -> Mark: ...
    @overload
    def __getitem__(self, which: slice) -> list[Mark]: ...
    def __getitem__(self, which: int | slice) -> Mark | list[Mark]:
        return self.run.marks()[which]


class CompiledPath(CompiledBatches):
    """The feed of a broker's connection."""

    def __init__(
        self,
        connection: Connection,
        dispatcher: Dispatcher,
        frame_size_max: int,
        sends: Sends,
        pulls: Pulls,
    ) -> None:
        super().__init__(connection, dispatcher, frame_size_max, sends, pulls)
        self._hot = _compiled()
        self._cursor: type[_hot.Cursor] = self._hot.Cursor
        self._decoder = CutDecoder(frame_size_max)
        self._takes_sends = self._is_plain_host and self._admission is None
        self._sent_last = False  # the last read had plain sends: look for them first
        self._sends_of = self._hot.sends_of
        self._length_max = frame_size_max - 4
        self._repeated = RepeatedPulls(frame_size_max) if self._admission is None else None
        # With access control: the last sender as the path in Python has found him, and his signer.
        self._signed_by: tuple[Any, _hot.Signer | None] = (None, None)

    def feed(self, data: bytes) -> Sequence[Part]:
        """A read that is one pull, like one before, or nothing but plain sends is answered at once,
        in few steps; others go on."""
        repeated = self._repeated
        if (
            repeated is None
            or self.kept_back
            or self.partial
            or self.gate is not None
            or self.error is not None
        ):
            return super().feed(data)
        started = perf_counter()
        found = repeated.find(data)
        if found is None:
            sends = self._sends
            run = None
            if self._sent_last and self._takes_sends:
                run = self._sends_of(
                    data,
                    self._length_max,
                    sends.plain,
                    rules(sends.added),
                    self._born_host,
                    self._store_host,
                    self._store.puts_wait,
                )
            if run is None:
                self._sent_last = False
                return super().feed(data)
            self.completed += len(run)
            out: list[Part] = []
            self._put_run(run, started, out)
            return out
        opaque, flag, code, fields = repeated.pull_of(found)
        try:
            parts = self._pulls.pull(
                self.connection, JSON, opaque, flag, code, fields, may_wait=True
            )
        except PutOff:
            return super().feed(data)
        self.completed += 1
        self._latencies[code].add(perf_counter() - started)
        return parts

    def _other(self, frame: RawFrame, out: list[Part], claim: int) -> int:
        answered = super()._other(frame, out, claim)
        if answered > 0 and self._repeated is not None and frame[0] == JSON and not frame[2]:
            head = JSON_HEADS.get(frame[1][:JSON_HEAD_SIZE])
            if head is not None and head[0] == PULL:
                self._repeated.learn(frame[1])
        return answered

    def _send_run(self, remaining: Iterator[RawFrame], out: list[Part]) -> RawFrame | None:
        if not isinstance(remaining, self._cursor):
            return super()._send_run(remaining, out)
        takes, sends = self._takes_sends, self._sends
        signer = self._signer() if self._admission is not None else None
        while True:
            kind = remaining.next_kind()
            if kind != _SEND:
                if kind == _BATCH and takes and self._put_batches(remaining, out):
                    continue
                return None if kind == _NO_MORE else next(remaining, None)
            started = perf_counter()
            run = None
            if takes or signer is not None:
                run = remaining.sends(
                    sends.plain,
                    rules(sends.added),
                    self._born_host,
                    self._store_host,
                    self._store.puts_wait,
                    signer,
                )
            if run is None:
                return super()._send_run(remaining, out)
            if signer is not None:
                self.connection.user = proven(self._signed_by[0][0])
            self._put_run(run, started, out)

    def _put_run(self, run: _hot.Run, started: float, out: list[Part]) -> None:
        """As `_put`, with few steps where the store takes all of them and no answer waits."""
        self._sent_last = True
        if run.waits:
            self._put((run.codec, run.code, started), run, _Marks(run), out)
            return
        facts: Facts = []
        failure = ""
        try:
            facts = self._store.put_rows(run)
        except Exception as error:
            failure = failure_text(run.code, self.connection, error)
        count = len(run)
        if len(facts) < count or run.encoded < count:
            one = run.codec, run.code, started
            self._go_on(one, run, _Marks(run), facts, failure, out)
            return
        # As `_count`, without its call.
        if not isinstance(facts, list) and (alike := facts.size_if_alike()) is not None:
            self._stats.add_put(alike[0], count, alike[1], count)
        else:
            super()._count(facts)
        if answers := run.answers(_answers(self._sends.answers, self._id_head)):
            out.append(answers)
        self._latencies[run.code].add_many(perf_counter() - started, count)

    def _signer(self) -> _hot.Signer | None:
        """Checks signatures of the user whom the path in Python has admitted last, for the same
        topic; None when it has to look again."""
        admission = self._admission
        assert admission is not None
        sender = admission.sender
        if sender is None or not self._is_plain_host:
            return None
        principal, name, topic, must_be_fresh = sender
        if not name or must_be_fresh or not admission.is_current(principal):
            return None
        known, signer = self._signed_by
        if known is not sender:
            signer = None
            if 0 < len(principal.secrets) <= SECRETS_MAX:
                signer = self._hot.Signer(name.encode(), topic.encode(), principal.secrets)
            self._signed_by = sender, signer
        return signer

    def _answer_rows(
        self,
        run: Run,
        marks: Sequence[Mark],
        facts: Facts,
        out: list[Part],
        waiting: list[Stored],
    ) -> None:
        if not isinstance(marks, _Marks) or marks.run.encoded != len(facts):
            super()._answer_rows(run, marks, facts, out, waiting)
        elif marks.run.waits:
            waiting += marks.run.stored()
        elif answers := marks.run.answers(_answers(self._sends.answers, self._id_head)):
            out.append(answers)

    def _stored_answers(self, run: Run, waiting: list[Stored]) -> list[Part]:
        made = self._hot.answers_of(run[0], waiting, _answers(self._sends.answers, self._id_head))
        if made is None:
            return super()._stored_answers(run, waiting)
        return [made] if made else []

    def _count(self, facts: Facts) -> None:
        if not isinstance(facts, list) and (alike := facts.size_if_alike()) is not None:
            count = len(facts)
            self._stats.add_put(alike[0], count, alike[1], count)
        else:
            super()._count(facts)
