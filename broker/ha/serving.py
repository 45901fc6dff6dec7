"""A master's side of one link, without its socket: a slave's reports, and its next frame."""

from __future__ import annotations

from collections.abc import Callable

from aerobee.broker.ha.epochs import Epochs
from aerobee.broker.ha.framing import EpochFraming, Framing, PlainFraming
from aerobee.broker.ha.sender import Sender
from aerobee.broker.ha.wire import HELLO, decode_hello, encode_welcome


class Serving:
    def __init__(
        self,
        batch: int,
        file_size: int,
        log: Callable[[], tuple[int, int]],
        epochs: Callable[[], Epochs],
        confirmed: Callable[[], int] | None = None,
    ) -> None:
        """`log` returns where our log begins and ends now, `confirmed` up to where all in-sync
        replicas have it; None: there is no in-sync set, so that is the log's end."""
        self._log = log
        self._confirmed = confirmed
        self._epochs = epochs
        self._framing: Framing | None = None  # until the slave has spoken
        self.sender = Sender(batch, file_size)
        self.broker_id: int | None = None  # until it is known

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """Bytes from the slave. Returns the immediate answer, and whether an ack was in them.
        StreamError: close the link."""
        answer = b""
        if self._framing is None:
            answer, data = self._choose_format(data)
        assert self._framing is not None
        end = self._framing.feed(data)
        if end is None:
            return answer, False
        if self.sender.is_open:
            self.sender.report(end)
        else:
            self.sender.begin(end, *self._log())
        return answer, True

    def _choose_format(self, data: bytes) -> tuple[bytes, bytes]:
        """Choose the stream format by the slave's first bytes; returns what follows its hello."""
        hello = decode_hello(data)
        if hello is None:
            self._framing = PlainFraming()
            return b"", data
        epochs = self._epochs()
        self._framing = EpochFraming(epochs, self._confirmed or (lambda: self._log()[1]))
        self.broker_id = hello.broker_id
        return encode_welcome(self._log()[1], epochs.entries), data[HELLO.size :]

    @property
    def has_news(self) -> bool:
        """Whether the confirm offset is beyond the one last sent."""
        framing, confirmed = self._framing, self._confirmed
        sent = framing.sent_confirm if isinstance(framing, EpochFraming) else None
        return sent is not None and confirmed is not None and confirmed() > sent

    def next_frame(self, log_end: int) -> tuple[int, int] | None:
        """Offset and size of what to send now; None when there is nothing up to `log_end`."""
        assert self._framing is not None
        return self.sender.next_frame(min(log_end, self._framing.limit(self.sender.position)))

    def head(self, offset: int, size: int) -> bytes:
        assert self._framing is not None
        return self._framing.head(offset, size)
