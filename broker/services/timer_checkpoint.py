"""config/timercheck, upstream's page of 4096 bytes: how far the timers had come, for certain."""

import os
from struct import Struct
from typing import Final, NamedTuple

_PAGE: Final = 4096
_FIELDS: Final = Struct(">7q")


class TimerCheckpoint(NamedTuple):
    read_ms: int = 0  # the first second that has not had its turn
    log_end: int = 0  # of the timer log
    queue_offset: int = 0  # the next message of rmq_sys_wheel_timer
    master_queue_offset: int = 0
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


def load(path: str) -> TimerCheckpoint | None:
    try:
        with open(path, "rb") as file:
            data = file.read(_FIELDS.size)
    except FileNotFoundError:
        return None
    return TimerCheckpoint(*_FIELDS.unpack(data)) if len(data) == _FIELDS.size else None


def encode(point: TimerCheckpoint) -> bytes:
    """As GET_TIMER_CHECK_POINT answers it."""
    return _FIELDS.pack(*point)


def save(path: str, point: TimerCheckpoint) -> None:
    """One write of a few bytes: whole or not at all."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(fd).st_size < _PAGE:
            os.ftruncate(fd, _PAGE)
        os.pwrite(fd, encode(point), 0)
        os.fdatasync(fd)
    finally:
        os.close(fd)
