"""A normal client: sends at a steady pace and measures how long each message takes to its receipt.

The pace does not wait for answers, so a broker that stops for 300 ms is seen by every message of
these 300 ms and not by one alone.
"""

from __future__ import annotations

import select
import socket
import struct
import time

from aerobee.protocol.files.record import decode_records
from aerobee.protocol.wire.codecs import decode_command
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.frame import FrameDecoder, encode_frame

TOPIC = "Live"
BODY_SIZE = 1024
_SENT_AT = struct.Struct(">d")


class LiveClient:
    """One connection that sends, one that holds a pull."""

    def __init__(self, port: int, rate: int = 500) -> None:
        self._gap = 1 / rate
        self._sends = socket.create_connection(("127.0.0.1", port))
        self._pulls = socket.create_connection(("127.0.0.1", port))
        for sock in (self._sends, self._pulls):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sent = self._answered = 0
        self._decoder, self._answers = FrameDecoder(64 << 20), FrameDecoder()
        self._send()  # makes the topic
        self._take_answers()
        self._pull(0)
        while not self._receive():
            pass

    def run(self, seconds: float) -> list[float]:
        """Seconds from send to receipt of each message, in rising order."""
        taken: list[float] = []
        now = time.perf_counter()
        due, end = now, now + seconds
        sent_before = self._sent
        while now < end or len(taken) < self._sent - sent_before:
            wait = due - now if now < end else 1.0
            ready, _, _ = select.select((self._sends, self._pulls), (), (), max(wait, 0.0))
            if self._pulls in ready:
                taken += self._receive()
            if self._sends in ready:
                self._take_answers()
            now = time.perf_counter()
            assert now < end + 60, "messages that were sent do not come"
            if due <= now < end:
                self._send()
                due = max(due + self._gap, now - self._gap)
        return sorted(taken)

    def close(self) -> None:
        self._sends.close()
        self._pulls.close()

    def _send(self) -> None:
        body = _SENT_AT.pack(time.perf_counter()).ljust(BODY_SIZE, b"\0")
        ext = {"a": "pg", "b": TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1"}
        ext |= {"h": "0", "i": "UNIQ_KEY\x01u\x02"}
        self._sends.sendall(encode_frame(Command(310, ext, body, opaque=self._sent)))
        self._sent += 1

    def _take_answers(self) -> None:
        for frame in self._answers.feed(self._sends.recv(1 << 16)):
            answer = decode_command(*frame)
            assert answer.code == 0, answer.remark

    def _pull(self, offset: int) -> None:
        ext = {
            "consumerGroup": "live",
            "topic": TOPIC,
            "queueId": "0",
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": "6",
            "commitOffset": "0",
            "suspendTimeoutMillis": "15000",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        self._pulls.sendall(encode_frame(Command(11, ext)))

    def _receive(self) -> list[float]:
        data = self._pulls.recv(1 << 20)
        now = time.perf_counter()
        assert data, "the broker closed the connection of a client that works"
        taken = []
        for frame in self._decoder.feed(data):
            answer = decode_command(*frame)
            self._pull(int(answer.ext["nextBeginOffset"]))
            if answer.code == 0:
                records = decode_records(answer.body)
                taken += [now - _SENT_AT.unpack_from(record.body)[0] for record in records]
        return taken
