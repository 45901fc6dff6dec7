"""What happens to the brokers of the chaos run; each fault ends with a broker that serves again."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final

from crash.powercut.disk import LoopDisk
from ha.processes import log_end
from peers.aerobee_broker import AerobeeBroker

PIECE: Final = 1 << 20
NOT_FOLLOWING: Final = "not following the master"
NEEDS_EMPTY: Final = "empty"


class Patient:
    def __init__(self, broker: tuple[AerobeeBroker, LoopDisk], rng: random.Random) -> None:
        self.broker, self.disk = broker
        self.rng = rng
        self.slowest_start = 0.0

    def start(self) -> None:
        began = time.monotonic()
        self.broker.start()
        self.slowest_start = max(self.slowest_start, time.monotonic() - began)

    def end(self) -> None:
        if self.broker.is_running:
            self.broker.kill()


class Slave(Patient):
    """A slave gets its master's records before they are on the master's disk. So it may be ahead
    of a master that has lost power, and says that it needs an empty folder then."""

    begun_anew = 0
    _log_read = 0

    def begin_anew_if_ahead(self) -> None:
        log = self.broker.log()
        lines, self._log_read = log[self._log_read :].splitlines(), len(log)
        if any(NOT_FOLLOWING in line and NEEDS_EMPTY in line for line in lines):
            self.broker.kill()
            shutil.rmtree(self.broker.store)
            self.start()
            self.begun_anew += 1

    def has_all_of(self, master: AerobeeBroker) -> bool:
        self.begin_anew_if_ahead()
        return log_end(self.broker.broker) == log_end(master.broker)


def kill(patient: Patient) -> None:
    patient.broker.kill()
    time.sleep(patient.rng.uniform(0, 2))
    patient.start()


def lose_power(patient: Patient) -> None:
    """The process ends first: nothing can be answered after the cut."""
    patient.broker.kill()
    patient.disk.cut()
    patient.disk.power_on()
    patient.start()


def stop(patient: Patient) -> None:
    patient.broker.stop()
    time.sleep(patient.rng.uniform(0, 2))
    patient.start()


def freeze(patient: Patient) -> None:
    os.kill(patient.broker.pid, signal.SIGSTOP)
    time.sleep(patient.rng.uniform(0.5, 5))
    os.kill(patient.broker.pid, signal.SIGCONT)


def kill_a_start(patient: Patient) -> None:
    patient.broker.kill()
    for _ in range(patient.rng.randint(1, 3)):
        patient.broker.launch()
        time.sleep(patient.rng.uniform(0.1, 1.0))
        patient.broker.kill()
    patient.start()


def fill_the_disk(patient: Patient) -> None:
    """Sends are refused, and accepted again once there is room."""
    filler = patient.disk.place / "filler"
    try:
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            room = os.statvfs(filler.parent)
            os.posix_fallocate(file.fileno(), 0, max(room.f_bavail * room.f_frsize - PIECE, PIECE))
            file.seek(0, os.SEEK_END)
            while True:  # until the disk is full
                file.write(bytes(PIECE))
        time.sleep(patient.rng.uniform(1, 4))
    finally:
        filler.unlink()


def crowd(patient: Patient) -> None:
    """Connections that say nothing, nonsense, or begin a frame and wait."""
    host, port = patient.broker.broker.rsplit(":", 1)
    with ExitStack() as stack:
        for _ in range(300):
            with suppress(OSError):
                one = stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
                one.send(
                    patient.rng.choice((b"", b"\0\0\1\0", patient.rng.randbytes(200))) or b"\0"
                )
        time.sleep(1)


FAULTS: Final[dict[str, Callable[[Patient], None]]] = {
    "kills": kill,
    "power cuts": lose_power,
    "stops": stop,
    "freezes": freeze,
    "killed starts": kill_a_start,
    "full disks": fill_the_disk,
    "crowds": crowd,
}
