"""Clients that could disturb the others, each kind in a process of its own.

    python -m bench.disturbers KIND PORT [COUNT]

Prints `ready`, starts at a line on stdin, prints a line when it is done, and exits at the next
line.
"""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import sys
import time
from collections.abc import Callable

from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.frame import encode_frame

COLD_TOPIC = "Cold"
GROUP = "crowd"
_NOTICE = b'"code":40,'
_FRAME_TIMEOUT_S = 20.0


def pull_frame(topic: str, offset: int, count: int = 32) -> bytes:
    ext = {
        "consumerGroup": "reader",
        "topic": topic,
        "queueId": "0",
        "queueOffset": str(offset),
        "maxMsgNums": str(count),
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return encode_frame(Command(11, ext))


def heartbeat_frame(client_id: str) -> bytes:
    body = {
        "clientID": client_id,
        "consumerDataSet": [
            {
                "groupName": GROUP,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "unitMode": False,
                "subscriptionDataSet": [
                    {"topic": "Live", "subString": "*", "subVersion": 1, "expressionType": "TAG"}
                ],
            }
        ],
        "producerDataSet": [{"groupName": "CLIENT_INNER_PRODUCER"}],
    }
    return encode_frame(Command(34, {}, json.dumps(body).encode()))


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def wait_for_line() -> None:
    if not sys.stdin.readline():
        raise SystemExit


def say(text: str) -> None:
    print(text, flush=True)


def swallow(poll: select.epoll, socks: dict[int, socket.socket], until_quiet_s: float) -> int:
    """Read, and act as consumers do: after a notice they ask for the members again."""
    asks = encode_frame(Command(38, {"consumerGroup": GROUP}))
    notices = 0
    while events := poll.poll(until_quiet_s):
        for number, _ in events:
            sock = socks[number]
            try:
                data = sock.recv(1 << 18)
            except BlockingIOError:
                continue
            if not data:
                poll.unregister(number)
            elif _NOTICE in data:
                notices += 1
                sock.setblocking(True)
                sock.sendall(asks)
                sock.setblocking(False)
    return notices


def crowd(port: int, count: int) -> None:
    """Members that join one group at once, and leave it at once."""
    poll = select.epoll()
    socks: dict[int, socket.socket] = {}
    for _ in range(count):
        sock = connect(port)
        socks[sock.fileno()] = sock
        poll.register(sock, select.EPOLLIN)
    frames = [heartbeat_frame(f"127.0.0.1@{number}") for number in range(count)]
    say("ready")
    wait_for_line()
    for sock, frame in zip(socks.values(), frames, strict=True):
        sock.sendall(frame)
        sock.setblocking(False)
    notices = swallow(poll, socks, 1.0)
    say(f"{count} joined, {notices} notices")
    wait_for_line()
    for sock in socks.values():
        sock.close()
    say("left")


def reader(port: int, _count: int) -> None:
    """Reads a topic from its beginning, as fast as possible."""
    sock = connect(port)
    say("ready")
    wait_for_line()
    offset = size = 0
    began = time.perf_counter()
    while True:
        sock.sendall(pull_frame(COLD_TOPIC, offset))
        length = int.from_bytes(_exactly(sock, 4), "big")
        frame = _exactly(sock, length)
        header_size = int.from_bytes(frame[1:4], "big")
        header = json.loads(frame[4 : 4 + header_size])
        if header["code"] != 0:
            break
        size += length
        offset = int(header["extFields"]["nextBeginOffset"])
    say(f"{size / 1e6:.0f} MB in {time.perf_counter() - began:.1f} s")
    wait_for_line()


def _exactly(sock: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = sock.recv_into(view)
        assert count, "the broker closed the connection"
        view = view[count:]
    return data


def idle(port: int, count: int) -> None:
    """Connections that send nothing."""
    socks = [connect(port) for _ in range(count)]
    say("ready")
    wait_for_line()
    say(f"{len(socks)} open")
    wait_for_line()


def slow(port: int, count: int) -> None:
    """Connections that send a frame at a byte a second, until each is closed."""
    frame = encode_frame(Command(105, {"topic": "x" * 200}))
    socks = [connect(port) for _ in range(count)]
    for sock in socks:
        sock.setblocking(False)
    say("ready")
    wait_for_line()
    began = time.monotonic()
    lived = []
    for number in range(len(frame)):
        step_began = time.monotonic()
        for sock in socks.copy():
            try:
                sock.send(frame[number : number + 1])
                closed = sock.recv(1) == b""
            except BlockingIOError:
                closed = False
            except OSError:
                closed = True
            if closed:
                socks.remove(sock)
                lived.append(time.monotonic() - began)
            time.sleep(max(0.0, 0.9 / count - 0.0001))
        if not socks:
            break
        time.sleep(max(0.0, 1.0 - (time.monotonic() - step_began)))
    say(f"slow closed after {min(lived):.1f} to {max(lived):.1f} s, {len(socks)} not")
    wait_for_line()


def deaf(port: int, count: int) -> None:
    """Connections that request as much as possible and read no answers."""
    frames = b"".join(pull_frame(COLD_TOPIC, offset) for offset in range(0, 200))
    socks = [connect(port) for _ in range(count)]
    say("ready")
    wait_for_line()
    for sock in socks:
        sock.setblocking(False)
        sock.send(frames)
    say(f"{count} asked for what they do not read")
    wait_for_line()


KINDS: dict[str, Callable[[int, int], None]] = {
    "crowd": crowd,
    "reader": reader,
    "idle": idle,
    "slow": slow,
    "deaf": deaf,
}


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.nice(10)  # the broker's delays are to be measured, not the machine's
    KINDS[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))
