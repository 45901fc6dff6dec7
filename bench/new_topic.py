"""Sends through real sockets to a topic that they make themselves: CPU of the broker per message.

Four connections keep 32 sends each in flight, and a new one follows each answer, as clients do. So
the topic is made under load, and all but its first sends should take the hot path: those that wait
for its configuration to be saved cost ten times as much.
"""

from __future__ import annotations

import selectors
import socket
import statistics
from pathlib import Path
from typing import Final

from aerobee.protocol.files import properties
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.frame import FrameDecoder, encode_frame
from bench.creations import Broker

CONNECTIONS: Final = 4
WINDOW: Final = 32
MESSAGES: Final = 20_000
_BODY: Final = bytes(1024)


class _Sender:
    """One connection with its sends in flight; all go to one queue."""

    def __init__(self, port: int, topic: str, queue_id: int, count: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        text = properties.encode({"UNIQ_KEY": f"7F000001{queue_id:024X}", "WAIT": "true"})
        ext = {"a": "bench", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0"}
        more = {"g": "1700000000000", "h": "0", "i": text, "j": "0", "k": "false", "m": "false"}
        command = Command(RequestCode.SEND_MESSAGE_V2, ext | more, _BODY, language="JAVA")
        self._frame = encode_frame(command)
        self._decoder = FrameDecoder()
        self._unsent = self.unanswered = count

    def send(self, count: int) -> None:
        count = min(count, self._unsent)
        self._unsent -= count
        self.socket.sendall(self._frame * count)

    def receive(self) -> int:
        """How many answers came; each must be a success."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise SystemExit("the broker closed the connection")
        frames = self._decoder.feed(data)
        for _, header, _ in frames:
            if b'"code":0,' not in header:
                raise SystemExit(f"refused: {header!r}")
        self.unanswered -= len(frames)
        return len(frames)


def _send_all(port: int, topic: str) -> None:
    with selectors.DefaultSelector() as selector:
        share = MESSAGES // CONNECTIONS
        senders = [_Sender(port, topic, number, share) for number in range(CONNECTIONS)]
        for sender in senders:
            selector.register(sender.socket, selectors.EVENT_READ, sender)
        for sender in senders:
            sender.send(WINDOW)
        while any(sender.unanswered for sender in senders):
            for key, _ in selector.select():
                key.data.send(key.data.receive())
        for sender in senders:
            sender.socket.close()


def _loop_ns(pid: int) -> int:
    """CPU time of the broker's loop so far: of the process's first thread."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def measure(topics: int = 8) -> float:
    """CPU microseconds of the loop per message, the median of so many new topics: the least would
    be that of a topic which left the general path early."""
    with Broker(slow_s=0.0) as broker:
        taken = []
        for number in range(topics):
            before = _loop_ns(broker.pid)
            _send_all(broker.port, f"New{number}")
            taken.append((_loop_ns(broker.pid) - before) / MESSAGES / 1000)
        return statistics.median(taken)
