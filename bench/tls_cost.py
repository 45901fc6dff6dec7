"""What TLS costs the broker: CPU per send, the same reads plain and encrypted, by turns.

    python -m bench.tls_cost [--body 1024] [--window 32] [--rounds 40]

A real store, a real connection and the broker's own TLS; the socket is memory, and so is the
client, whose work is not counted. Needs the openssl command, for a certificate.
"""

import argparse
import asyncio
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aerobee.broker.fast.hot_path import HotPath
from aerobee.broker.net.connection import Connection
from aerobee.broker.net.feed import Feed
from aerobee.broker.net.tls import Tls, TlsFiles, TlsTransport
from aerobee.protocol.wire.command import JSON
from bench.hotpath import ROUND_MESSAGES, NoServer, reads
from bench.signed import running


class _Socket(asyncio.Transport):
    """Takes what is written; nobody reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 10911) if name in ("peername", "sockname") else default

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def taken(self) -> bytes:
        data = b"".join(self.written)
        self.written.clear()
        return data


class _Server(NoServer):
    def __init__(self, make: Callable[[Connection], HotPath]) -> None:
        super().__init__()
        self.make = make

    def make_feed(self, connection: Connection) -> Feed:
        return self.make(connection)


def make_certificate(folder: Path) -> TlsFiles:
    certificate, key = str(folder / "server.pem"), str(folder / "server.key")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
            *("ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    return TlsFiles(certificate, key)


class _Client:
    """The other end of a TLS connection, in memory."""

    def __init__(self, transport: TlsTransport, socket: _Socket) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._in, self._out)
        while True:
            try:
                self._ssl.do_handshake()
            except ssl.SSLWantReadError:
                transport.data_received(self._out.read())
                self._in.write(socket.taken())
            else:
                transport.data_received(self._out.read())
                return

    def encrypted(self, data: bytes) -> bytes:
        self._ssl.write(data)
        return self._out.read()


async def main(arguments: argparse.Namespace) -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        running(name, signed=False) as (broker, make),
    ):
        tls = Tls(make_certificate(Path(name)), "permissive")
        server = _Server(make)
        batches = reads(JSON, bytes(arguments.body), arguments.window, ROUND_MESSAGES)
        plain, raw = Connection(server), _Socket()
        plain.connection_made(raw)
        secret, cipher_raw = Connection(server), _Socket()
        secret.connection_made(cipher_raw)
        transport = TlsTransport(cipher_raw, secret, tls)
        secret.use_transport(transport)
        client = _Client(transport, cipher_raw)

        def cost(receive: Callable[[bytes], None], socket: _Socket, prepared: list[bytes]) -> float:
            started = time.thread_time()
            for batch in prepared:
                receive(batch)
            broker.store.reput.catch_up()
            spent = time.thread_time() - started
            assert socket.taken()
            return spent / ROUND_MESSAGES * 1e6

        rounds = []
        for _ in range(arguments.rounds):
            encrypted = [client.encrypted(batch) for batch in batches]
            rounds.append(
                (
                    cost(plain.data_received, raw, batches),
                    cost(transport.data_received, cipher_raw, encrypted),
                )
            )
            await asyncio.sleep(0)
        without, under = (min(column) for column in zip(*rounds, strict=True))
        ratio = under / without
        print(f"send JSON plain {without:.2f}   TLS {under:.2f} us per message   x {ratio:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=40)
    asyncio.run(main(parser.parse_args()))
