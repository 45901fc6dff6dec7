"""One send on one socket: how a benchmark knows that a broker takes messages."""

from __future__ import annotations

import socket
import time

from aerobee.protocol.wire.codecs import decode_command
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.frame import FrameDecoder, encode_frame


def first_send(port: int, topic: str = "BenchStart") -> bool:
    """True when the broker on this port stores a message."""
    fields = {
        "a": "bench",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": str(time.time_ns() // 1_000_000),
        "h": "0",
        "i": "",
        "j": "0",
        "k": "false",
        "m": "false",
    }
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            command = Command(RequestCode.SEND_MESSAGE_V2, fields, b"first", language="JAVA")
            connection.sendall(encode_frame(command))
            decoder = FrameDecoder()
            while data := connection.recv(65536):
                if frames := decoder.feed(data):
                    return decode_command(*frames[0]).code == ResponseCode.SUCCESS
    except OSError:
        pass  # nothing listens yet
    return False
