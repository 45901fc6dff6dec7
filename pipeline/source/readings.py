"""Reports of a stream's tasks to the driver, as datagrams: what they have read.

Spark does not pass figures from a Python source's tasks to the driver. So a task sends one small
datagram at its end, and the driver reads them when it reports its progress; a lost one only makes
the figures smaller, and a task never waits.
"""

import json
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

log: Final = logging.getLogger("aerobee.pipeline")
SIZE_MAX: Final = 2048
NAMES: Final = ("bytes", "retries", "waited_ms")

Address = tuple[str, int]


class Readings:
    """The driver's side. Nothing waits: datagrams lie in the socket's buffer until `take`."""

    def __init__(self, reached: str) -> None:
        """`reached`: a server of the cluster; the route to it decides our own address."""
        self.address: Address | None = None
        self._socket: socket.socket | None = None
        try:
            host = _own_address(reached)
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.socket(family, socket.SOCK_DGRAM)
            self._socket.bind((host, 0))
            self._socket.setblocking(False)
            self.address = (host, self._socket.getsockname()[1])
        except OSError as error:
            log.warning("no bytes in the query's progress: %s", error)
            self.close()

    def take(self) -> dict[str, int]:
        """The sums of the readings since the last call."""
        sums = dict.fromkeys(NAMES, 0)
        while self._socket is not None:
            try:
                found = json.loads(self._socket.recv(SIZE_MAX))
                for name in NAMES:
                    sums[name] += int(found[name])
            except BlockingIOError:
                break
            except (ValueError, KeyError, TypeError):
                continue  # not one of ours
        return sums

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _own_address(reached: str) -> str:
    host, _, port = reached.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(found[0], socket.SOCK_DGRAM) as probe:
        probe.connect(found[4])  # sends nothing
        return str(probe.getsockname()[0])


@contextmanager
def reported(address: Address | None, reading: dict[str, Any]) -> Iterator[None]:
    """Sends the reading to the driver when the block is left."""
    try:
        yield
    finally:
        if address is not None:
            family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
            try:
                with socket.socket(family, socket.SOCK_DGRAM) as sender:
                    sender.sendto(json.dumps(reading).encode(), address)
            except OSError as error:
                log.debug("what was read is not reported: %s", error)
