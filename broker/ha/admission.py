"""Access to the replication port: which slaves may follow, and TLS around the stream.

The stream itself knows plain sockets only: the kernel copies files into them. Under TLS it gets one
end of a socket pair, and two tasks relay its bytes between the other end and TLS.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final

SIGN_IN_S: Final = 10.0  # for a slave to sign in, by a signed request
HANDSHAKE_BYTE: Final = 0x16  # the first byte of TLS; no report of a slave begins with it
PIECE: Final = 256 << 10


class NotAdmitted(Exception):
    """Why a slave may not follow."""


async def admitted(
    sock: socket.socket,
    *,
    signed_in: Callable[[], Coroutine[Any, Any, None]] | None,
    context: ssl.SSLContext | None,
    tls_only: bool,
) -> socket.socket:
    """The socket to stream to. NotAdmitted when the slave has not signed in (`signed_in` waits for
    that, None: it need not), or does not use TLS where it must."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(SIGN_IN_S):
            if signed_in is not None:
                await signed_in()
            if context is None:
                return sock
            if await _first_byte(loop, sock) != HANDSHAKE_BYTE:
                if tls_only:
                    raise NotAdmitted("it does not use TLS, and tls.server.mode is enforcing")
                return sock
            return await _relayed(_accepted(sock, context))
    except TimeoutError:
        raise NotAdmitted(
            "it has not signed in: a slave needs innerClientAuthenticationCredentials of a user "
            "here, or slavesNeedSignature=false"
        ) from None
    except (OSError, ValueError) as error:  # of ssl, too
        raise NotAdmitted(f"TLS: {error}") from None


async def under_tls(sock: socket.socket, context: ssl.SSLContext, host: str) -> socket.socket:
    """A slave's connection to its master, under TLS."""
    return await _relayed(asyncio.open_connection(sock=sock, ssl=context, server_hostname=host))


async def _first_byte(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> int:
    """Peek at the first byte; -1: the connection has ended."""
    readable = asyncio.Event()
    loop.add_reader(sock, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock)
    return (sock.recv(1, socket.MSG_PEEK) or b"\0")[0]


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _accepted(sock: socket.socket, context: ssl.SSLContext) -> Streams:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock, ssl=context)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


_relays: set[asyncio.Task[None]] = set()


async def _relayed(opening: Coroutine[Any, Any, Streams]) -> socket.socket:
    """A plain socket whose bytes go through the opened streams, both ways."""
    outer = await opening
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    inner = await asyncio.open_connection(sock=theirs)
    for source, target in ((outer[0], inner[1]), (inner[0], outer[1])):
        task = asyncio.create_task(_relay(source, target), name="replication under TLS")
        _relays.add(task)
        task.add_done_callback(_relays.discard)
    return ours


async def _relay(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(PIECE):
            target.write(data)
            await target.drain()
    except (OSError, ssl.SSLError):
        pass  # the other end sees that the stream has ended
    finally:
        target.close()
