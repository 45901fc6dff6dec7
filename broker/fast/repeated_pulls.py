"""Pulls that repeat an earlier one, as a consumer's do: only four numbers differ.

The first one is decoded as usual. The next ones are compared with it in C, byte by byte except for
the numbers, which decodes them. If everything asked for is in memory, C builds the answer, too.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from aerobee.broker.compiled import compiled
from aerobee.broker.fast.hot_codecs import UNUSUAL, PullFrame
from aerobee.broker.handlers.pull.pull import Pulls
from aerobee.broker.net.answers import FOUND_PIECES
from aerobee.broker.net.connection import Connection
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.headers import PullRequest

if TYPE_CHECKING:
    from aerobee.broker.compiled import _hot

PULL_MESSAGE: Final = int(RequestCode.PULL_MESSAGE)
LEARN_MAX: Final = 200  # pulls without a match: after that, learning is not worth it
_NAMES: Final = (b"opaque", b"queueId", b"queueOffset", b"commitOffset")
_NUMBER: Final = re.compile(rb'"(%s)"\s*:\s*"?(\d+)' % b"|".join(_NAMES))
_decode: Final = msgspec.json.Decoder(PullFrame, strict=False).decode
Repeated = tuple[int, int, int, PullRequest]  # opaque, flag, code
Found = tuple[PullFrame, int, int, int, int]


class RepeatedPulls:
    """The repeated pulls of one connection."""

    def __init__(self, frame_size_max: int) -> None:
        self._repeats: _hot.Repeats = compiled().Repeats(frame_size_max)
        self._learned = 0
        # For a read that is one pull: the answer, what `pull_of` needs, or None: no match.
        self.answer = self._repeats.answer

    def answer_with(self, pulls: Pulls, connection: Connection) -> None:
        """From now on answer plain pulls in C."""
        store, plain = pulls.broker.store, pulls.plain
        self._queues = store.queue_table.table
        in_c: _hot.PlainPulls = compiled().PlainPulls(
            self._queues,
            store.commit_log.files,
            store.hot_bytes,
            store.visible_end,
            plain.bounds,
            partial(plain.takes, connection),
            FOUND_PIECES,
        )
        self._repeats.answer_with(in_c, self._ready)

    def _ready(self, like: PullFrame, queue_id: int) -> _hot.Ready | None:
        """The state kept for pulls of one queue; None: there is no such queue, or the pulls are not
        plain."""
        key = like.extFields.topic, queue_id
        if like.flag or like.code != PULL_MESSAGE or key not in self._queues:
            return None
        ready: _hot.Ready = compiled().Ready(self.pull_of((like, 0, queue_id, 0, 0))[3], key)
        return ready

    def pull_of(self, found: Found) -> Repeated:
        """The pull that `match` found."""
        like: PullFrame
        like, opaque, queue_id, queue_offset, commit_offset = found
        same = like.extFields
        fields = PullRequest(
            same.consumer_group,
            same.topic,
            queue_id,
            queue_offset,
            same.max_msg_nums,
            same.sys_flag,
            commit_offset,
            same.suspend_timeout_millis,
            same.subscription,
            same.sub_version,
            same.expression_type,
            same.max_msg_bytes,
        )
        return opaque, like.flag, like.code, fields

    def learn(self, header: bytes) -> None:
        """Remember this pull as a template, if it is plain."""
        if self._learned >= LEARN_MAX:
            return
        self._learned += 1
        numbers = list(_NUMBER.finditer(header))
        names = [found[1] for found in numbers]
        if sorted(names) != sorted(_NAMES) or b"\\" in header:
            return  # a number is missing or appears twice, or a name is escaped
        try:
            frame = _decode(header)
        except UNUSUAL:
            return
        fields = frame.extFields
        values = frame.opaque, fields.queue_id, fields.queue_offset, fields.commit_offset
        which = tuple(_NAMES.index(name) for name in names)
        if any(int(found[2]) != values[k] for found, k in zip(numbers, which, strict=True)):
            return
        starts = [0, *(found.end(2) for found in numbers)]
        ends = [*(found.start(2) for found in numbers), len(header)]
        pieces = tuple(header[start:end] for start, end in zip(starts, ends, strict=True))
        self._repeats.learn(pieces, which, frame)
