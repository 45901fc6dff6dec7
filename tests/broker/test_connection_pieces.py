"""Answers in many pieces over a real socket and the daemon's own event loop."""

import asyncio
import random
import socket
from collections.abc import Callable, Sequence

import pytest

from aerobee.broker.net.connection import Connection
from aerobee.broker.net.outbox import PIECES_MAX, Part
from aerobee.broker.net.server import Server, bind
from aerobee.protocol.wire.codecs import ProtocolError

uvloop = pytest.importorskip("uvloop")


class Pieces:
    """A feed that answers each byte of a read with the same pieces."""

    error: ProtocolError | None = None
    completed = 0
    kept_back: Sequence[object] = ()
    partial = False
    header_missing = False

    def __init__(self, connection: Connection, pieces: list[Part], released: list[int]) -> None:
        self.connection = connection
        self.pieces = pieces
        self.released = released

    def feed(self, data: bytes) -> Sequence[Part]:
        self.connection.outbox.release_when_sent(lambda: self.released.append(len(data)))
        return self.pieces * len(data)

    def resume(self) -> Sequence[Part]:
        return ()


def run_with(pieces: list[Part], client: Callable[[int], None], released: list[int]) -> None:
    async def main() -> None:
        server = Server(lambda connection: Pieces(connection, pieces, released))
        listening = bind("127.0.0.1", 0)
        await server.listen(listening)
        port = listening.getsockname()[1]
        await asyncio.get_running_loop().run_in_executor(None, client, port)
        await server.stop(5.0)

    uvloop.run(main())


def made_pieces(count: int, longest: int) -> list[Part]:
    chance = random.Random(3)
    content = chance.randbytes(longest * 2)
    lengths = [chance.choice((1, 17, chance.randrange(1, longest))) for _ in range(count)]
    return [memoryview(content)[n % longest : n % longest + size] for n, size in enumerate(lengths)]


def _read(sock: socket.socket, size: int, at_once: int) -> bytes:
    got = bytearray()
    while len(got) < size:
        data = sock.recv(at_once)
        assert data, f"closed after {len(got)} of {size} bytes"
        got += data
    return bytes(got)


@pytest.mark.parametrize("count", [2, PIECES_MAX, PIECES_MAX + 1, 3 * PIECES_MAX + 7])
def test_every_byte_arrives_in_order_however_slowly_it_is_read(count: int) -> None:
    pieces = made_pieces(count, 6_000)
    wanted = b"".join(pieces) * 3
    released: list[int] = []
    received = bytearray()

    def client(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), 10) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            sock.sendall(b"ab")
            received.extend(_read(sock, len(wanted) * 2 // 3, 50_000))
            sock.sendall(b"c")  # nothing is in flight any more
            received.extend(_read(sock, len(wanted) // 3, 1 << 20))

    run_with(pieces, client, released)
    assert received == wanted
    assert sum(released) == 3


def test_a_client_that_goes_while_pieces_are_under_way_lets_the_files_go() -> None:
    released: list[int] = []

    def client(port: int) -> None:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", port), 10) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
                sock.sendall(b"abc")
                sock.recv(1000)

    run_with(made_pieces(2000, 20_000), client, released)
    assert sum(released) == 15
