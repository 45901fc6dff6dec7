"""One end of a remoting connection without its socket: requests to bytes, bytes to answers.

Both ends send requests. A transport writes the parts that it gets from here, and provides the
socket, the clock and the texts of errors.
"""

import itertools
import math
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from aerobee.protocol.wire.codecs import ProtocolError, decode_command
from aerobee.protocol.wire.command import JSON, MSGPACK, ONEWAY_FLAG, Command
from aerobee.protocol.wire.frame import FrameDecoder, encode_frame_head
from aerobee.protocol.wire.signing import Credentials, Signer

OPAQUE_MAX: Final = 0x7FFFFFFF
TIMER_GRAIN_S: Final = 0.001  # event loops count in milliseconds and may call that much too early

Parts = tuple[bytes | memoryview, ...]


class Waiter(Protocol):
    """Gets one answer: a Future, or what a transport without an event loop has in its place."""

    def done(self) -> bool: ...

    def set_result(self, answer: Command, /) -> None: ...


W = TypeVar("W", bound=Waiter)


class Pending(NamedTuple, Generic[W]):
    """A request without an answer."""

    waiter: W
    code: int
    seconds: float  # its timeout
    deadline: float


class Conversation(Generic[W]):
    """The protocol state of one end of a connection."""

    def __init__(self, credentials: Credentials | None = None, *, upgrade: bool = False) -> None:
        """`upgrade`: switch to MessagePack once the peer has identified itself as Aerobee."""
        self.codec = JSON  # of our requests: every peer reads JSON
        self.peer_version = 0  # from its first answer
        self.error: ProtocolError | None = (
            None  # the peer sent no valid frame: unusable from here on
        )
        self.next_deadline = math.inf  # no request expires before
        self._signer = None if credentials is None else Signer(credentials)
        self._upgrade = upgrade
        self._decoder = FrameDecoder()
        self._opaques = itertools.count(1)
        self._pending: dict[int, Pending[W]] = {}

    @property
    def in_flight(self) -> int:
        """Requests in flight, including those that timed out."""
        return len(self._pending)

    def request(
        self, command: Command, waiter: W, now: float = 0.0, seconds: float = math.inf
    ) -> Parts:
        """The frame of a request; `waiter` gets the answer if it comes in time."""
        parts = self._ask(command)
        deadline = now + seconds
        self._pending[command.opaque] = Pending(waiter, command.code, seconds, deadline)
        if deadline < self.next_deadline:
            self.next_deadline = deadline
        return parts

    def written_late(self, first: int, now: float) -> None:
        """Requests since `first` (its opaque) were only written now: their timeouts start now."""
        for opaque, row in reversed(self._pending.items()):
            if opaque < first:
                return
            self._pending[opaque] = row._replace(deadline=now + row.seconds)

    def oneway(self, command: Command) -> Parts:
        """The frame of a request that gets no answer."""
        command.flag |= ONEWAY_FLAG
        return self._ask(command)

    def _ask(self, command: Command) -> Parts:
        command.opaque = next(self._opaques) & OPAQUE_MAX
        command.codec = self.codec
        if self._signer is not None:
            self._signer.sign(command)
        return frame_parts(command)

    def receive(self, data: bytes) -> list[Command]:
        """Deliver the answers that `data` completes; returns the peer's requests."""
        requests: list[Command] = []
        try:
            for codec, header, body in self._decoder.feed(data) if self.error is None else ():
                command = decode_command(codec, header, body)
                if command.is_response:
                    self.answered(command)
                else:
                    requests.append(command)
        except ProtocolError as error:
            self.error = error
        self.error = self.error or self._decoder.error
        return requests

    def answered(self, answer: Command) -> None:
        """Deliver one answer; a late or unsolicited one is dropped."""
        if self.peer_version == 0:
            self.peer_version = answer.version
            if self._upgrade and answer.language == "PYTHON":  # only Aerobee's answers do
                self.codec = MSGPACK
        pending = self._pending.pop(answer.opaque, None)
        if pending is not None and not pending.waiter.done():
            pending.waiter.set_result(answer)

    def expire(self, now: float) -> list[Pending[W]]:
        """Drop requests that timed out; returns those that the caller has to fail."""
        limit = now + TIMER_GRAIN_S
        if limit < self.next_deadline:
            return []
        expired = [opaque for opaque, row in self._pending.items() if row.deadline <= limit]
        late = [self._pending.pop(opaque) for opaque in expired]
        self.next_deadline = min((row.deadline for row in self._pending.values()), default=math.inf)
        return [row for row in late if not row.waiter.done()]

    def end(self) -> list[Pending[W]]:
        """The connection is lost: drop all requests; returns those that the caller has to fail."""
        return self.expire(math.inf)


def frame_parts(command: Command) -> Parts:
    """A complete frame, its body not copied."""
    body = command.body
    head = encode_frame_head(command, len(body))
    return (head, body) if body else (head,)
