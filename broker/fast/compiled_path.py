"""The hot path with its plain sends in C (`broker.compiled`): same answers, same files.

Frames are parsed in C as long as they are plain. The rest, and whatever the store does not take at
once, continues in Python from the same frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import lru_cache
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakKeyDictionary

from aerobee.broker.auth.verdicts import proven
from aerobee.broker.compiled import compiled
from aerobee.broker.fast.compiled_batches import CompiledBatches
from aerobee.broker.fast.compiled_runs import CompiledRuns
from aerobee.broker.fast.hot_codecs import JSON_HEAD_SIZE, JSON_HEADS, PULL
from aerobee.broker.fast.repeated_pulls import PULL_MESSAGE, RepeatedPulls
from aerobee.broker.handlers.pull.one_pull import Deferred
from aerobee.broker.handlers.pull.pull import Pulls
from aerobee.broker.handlers.send import Sends
from aerobee.broker.handlers.send_rules import UNUSUAL_NAMES, UNUSUAL_SYS_FLAGS
from aerobee.broker.net.connection import Connection
from aerobee.broker.net.outbox import Part
from aerobee.broker.net.requests import Dispatcher
from aerobee.protocol.files import properties
from aerobee.protocol.files.properties import CRC32, NAME_END
from aerobee.protocol.wire.command import JSON
from aerobee.protocol.wire.frame import FrameDecoder, RawFrame

if TYPE_CHECKING:
    from aerobee.broker.compiled import _hot

_SEND, _BATCH, _NO_MORE = 1, 2, -1  # kinds of frames
INBOX_SIZE: Final = 256 << 10  # about what uvloop reads at once
MANY_REQUESTS: Final = 64 << 10  # bytes of a read after which a client's reads go to the inbox
SECRETS_MAX: Final = 4  # per user, for signatures checked in C
_UNIQUE: Final = f"{properties.UNIQ_KEY}{NAME_END}".encode()
_NO_WAIT: Final = f"{properties.WAIT}{NAME_END}false".encode()
_NAMES: Final = tuple(name.encode() for name in (*UNUSUAL_NAMES, CRC32))


@lru_cache(maxsize=64)
def rules(added: str) -> _hot.Rules:
    """The rules for plain sends; `added`: the properties that every message gets."""
    make: type[_hot.Rules] = compiled().Rules
    return make(_UNIQUE, _NO_WAIT, _NAMES, UNUSUAL_SYS_FLAGS, added.encode())


class CutDecoder(FrameDecoder):
    """Splits bytes into frames in C, lazily."""

    __slots__ = ("_cut",)

    def __init__(self, frame_size_max: int) -> None:
        super().__init__(frame_size_max)
        self._cut = compiled().Frames

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
            super().feed(data[frames.stop :])  # raises the error
        elif frames.stop < len(data):
            self._buffer += data[frames.stop :] if frames.stop else data
        return cast(list[RawFrame], frames)  # only iterated and measured

    @property
    def begun(self) -> bytearray:
        """The received part of an incomplete frame."""
        return self._buffer

    def receive(self, inbox: _hot.Inbox, count: int) -> list[RawFrame]:
        """As `feed`, for a read that was received after the incomplete frame, in the inbox."""
        if inbox.begun == len(self._buffer) and self.error is None:
            frames = inbox.frames(count, self.frame_size_max - 4)
            if not frames.bad:
                self._wanted = frames.wanted
                self._buffer[:] = frames.rest()
                return cast(list[RawFrame], frames)
        return self.feed(inbox.received(count))


_inboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, _hot.Inbox] = WeakKeyDictionary()


def _inbox_of(loop: asyncio.AbstractEventLoop) -> _hot.Inbox:
    """The inbox of all connections of a loop; each loop has its own, as it may have a thread."""
    found = _inboxes.get(loop)
    if found is None:
        make: type[_hot.Inbox] = compiled().Inbox
        found = _inboxes[loop] = make(INBOX_SIZE)
    return found


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
        self._hot = compiled()
        self._runs = self._compiled_runs = CompiledRuns(connection, dispatcher, sends)
        self._cursor: type[_hot.Cursor] = self._hot.Cursor
        self._decoder = self._cut = CutDecoder(frame_size_max)
        self._inbox: _hot.Inbox | None = None  # once a read had many requests
        self._takes_sends = self._runs.is_plain_host and self._admission is None
        self._sent_last = False  # the last read had plain sends: look for them first
        self._sends_of = self._hot.sends_of
        self._length_max = frame_size_max - 4
        self._repeated: RepeatedPulls | None = None
        if self._admission is None:
            self._repeated = RepeatedPulls(frame_size_max)
            self._repeated.answer_with(pulls, connection)
        # With access control: the last sender admitted by the Python path, and its signer.
        self._signed_by: tuple[Any, _hot.Signer | None] = (None, None)

    def feed(self, data: bytes) -> Sequence[Part]:
        """Fast paths for a read that is one repeated pull, or only plain sends; others are parsed
        frame by frame."""
        repeated = self._repeated
        if (
            repeated is None
            or self.kept_back
            or self.partial
            or self.gate is not None
            or self.error is not None
        ):
            if self.partial and len(data) >= MANY_REQUESTS and self._inbox is None:
                self._inbox = _inbox_of(asyncio.get_running_loop())
                self.connection.receive_into(self)
            return super().feed(data)
        started = perf_counter()
        found = repeated.answer(data)
        if found is None:
            sends, runs = self._sends, self._compiled_runs
            run = None
            if self._sent_last and self._takes_sends:
                run = self._sends_of(
                    data,
                    self._length_max,
                    sends.plain,
                    rules(sends.added),
                    runs.born_host,
                    runs.store_host,
                    self._store.puts_wait,
                )
            if run is None:
                self._sent_last = False
                return super().feed(data)
            self.completed += len(run)
            out: list[Part] = []
            runs.put_encoded(run, started, out)
            return out
        if not isinstance(found, tuple):
            self.completed += 1
            self._latencies[PULL_MESSAGE].add(perf_counter() - started)
            return (found,)
        opaque, flag, code, fields = repeated.pull_of(found)
        try:
            parts = self._pulls.pull(self.connection, JSON, opaque, flag, code, fields, True, None)
        except Deferred:
            return super().feed(data)
        self.completed += 1
        self._latencies[code].add(perf_counter() - started)
        return parts

    def room(self) -> _hot.Inbox:
        """The buffer for the next read."""
        assert self._inbox is not None
        return self._inbox.room(self._cut.begun)

    def received(self, count: int) -> bytes:
        """A copy of the bytes received there."""
        assert self._inbox is not None
        return self._inbox.received(count)

    def receive(self, count: int) -> Sequence[Part]:
        """As `feed`, for a read in that buffer."""
        assert self._inbox is not None
        return self._take(self._cut.receive(self._inbox, count))

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
        takes, sends, runs = self._takes_sends, self._sends, self._compiled_runs
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
                    runs.born_host,
                    runs.store_host,
                    self._store.puts_wait,
                    signer,
                )
            if run is None:
                return super()._send_run(remaining, out)
            if signer is not None:
                self.connection.user = proven(self._signed_by[0][0])
            self._sent_last = True
            runs.put_encoded(run, started, out)

    def _signer(self) -> _hot.Signer | None:
        """Checks signatures of the user that the Python path admitted last, for the same topic;
        None when the Python path has to check again."""
        admission = self._admission
        assert admission is not None
        sender = admission.sender
        if sender is None or not self._runs.is_plain_host:
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
