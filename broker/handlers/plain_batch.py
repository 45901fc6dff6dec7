"""Batches whose messages are all plain, cut and encoded in C where the installation has that.

Whatever is unusual about one is left to `handlers.send`, which knows the rules: nothing is refused
here.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from aerobee.broker.compiled import hot
from aerobee.broker.handlers.send_rules import UNUSUAL_SYS_FLAGS
from aerobee.protocol.files import properties
from aerobee.protocol.files.properties import NAME_END, PAIR_END_BYTES

if TYPE_CHECKING:
    from aerobee.broker.compiled import _hot

# Parts of the names of delays; a copy's old checksum.
UNUSUAL_PARTS: Final = ("DELAY", "TIMER_", properties.CRC32)


@cache
def batch_rules() -> _hot.Rules:
    assert hot is not None
    make: type[_hot.Rules] = hot.Rules
    names = tuple(name.encode() for name in UNUSUAL_PARTS)
    unique = f"{properties.UNIQ_KEY}{NAME_END}".encode()
    no_wait = f"{properties.WAIT}{NAME_END}false".encode()
    return make(unique, no_wait, names, UNUSUAL_SYS_FLAGS, PAIR_END_BYTES)


def plain_batch(
    body: bytes, queue: Any, numbers: tuple[int, int, int], hosts: tuple[bytes, bytes]
) -> _hot.Run | None:
    """The messages in a batch's body, all of which wait for the disk if any answer does; None: the
    general way has to look at them. `numbers`: sys flag, born timestamp, reconsume times."""
    if hot is None:
        return None
    run: _hot.Run | None = hot.batch(body, queue, batch_rules(), *numbers, *hosts)
    return run
