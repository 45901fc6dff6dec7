"""Settings, contexts and a listener between client and broker for tests of TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tls.certificates import Authority, Pair


def tls_settings(pair: Pair, **more: Any) -> dict[str, Any]:
    paths = {"tls_server_cert_path": pair.certificate, "tls_server_key_path": pair.key}
    return paths | {"namesrv_listen_port": 0} | more


def client_context(authority: Authority, **limits: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.pair.certificate)
    # As Java and Python before 3.13: in-house authorities often lack extensions.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    for name, value in limits.items():
        setattr(context, name, value)
    return context


class Watched:
    """A relay to the broker that records every byte the broker sends."""

    def __init__(self, port: int) -> None:
        self.target, self.seen = port, bytearray()

    @asynccontextmanager
    async def listening(self, piece: int = 1 << 16) -> AsyncIterator[int]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            theirs, ours = await asyncio.open_connection("127.0.0.1", self.target)

            async def copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
                while data := await source.read(piece):
                    if source is theirs:
                        self.seen += data
                    to.write(data)
                    await to.drain()
                to.close()

            await asyncio.gather(copy(reader, ours), copy(theirs, writer), return_exceptions=True)

        listener = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            yield listener.sockets[0].getsockname()[1]
        finally:
            listener.close()
