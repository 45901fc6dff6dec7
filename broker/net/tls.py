"""TLS on the ports of plain connections: the first byte of a client decides which one it speaks.

The ssl module works on bytes in memory here (`wrap_bio`). asyncio's and uvloop's own way to TLS
loses bytes that were read before the switch and costs twice as much. A plain connection pays only
for a check of its first byte; after that its transport calls the connection directly.
"""

import asyncio
import contextlib
import os
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, cast

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.net.connection import Connection

log = structlog.get_logger("aerobee.tls")

HANDSHAKE_BYTE: Final = 0x16
HANDSHAKE_S: Final = 10.0
READ_SIZE: Final = 256 << 10
CHECK_EVERY_S: Final = 5.0
LOG_EVERY_S: Final = 1.0

DISABLED: Final = "disabled"
PERMISSIVE: Final = "permissive"
ENFORCING: Final = "enforcing"


class TlsError(Exception):
    """Certificates or keys cannot be used; the text is meant for the operator."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A server's certificate, and the CAs that it trusts."""

    certificate: str
    key: str
    key_password: str = ""
    trusted: str = ""  # the CA of clients' certificates
    client_auth: str = "none"  # optional, require

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.certificate, self.key, self.trusted)))

    def __repr__(self) -> str:
        return f"TlsFiles({self.certificate})"


def make_context(files: TlsFiles) -> ssl.SSLContext:
    """TLS 1.2 and 1.3; TlsError says which file cannot be used and why."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    for path in files.paths:
        if not os.access(path, os.R_OK):
            raise TlsError(f"{path} cannot be read; check its path and permissions")
    try:
        # Without any password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(files.certificate, files.key, password=files.key_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise TlsError(
            f"the certificate {files.certificate} and the key {files.key} cannot be used: "
            f"{_reason(error)}; do they belong together, and is tls.server.keyPassword right?"
        ) from None
    if files.client_auth != "none":
        if not files.trusted:
            raise TlsError(
                f"tls.server.need.client.auth={files.client_auth} needs tls.server.trustCertPath: "
                "the CA that has signed the clients' certificates"
            )
        is_needed = files.client_auth == "require"
        context.verify_mode = ssl.CERT_REQUIRED if is_needed else ssl.CERT_OPTIONAL
    if files.trusted:
        try:
            context.load_verify_locations(files.trusted)
        except (ssl.SSLError, OSError) as error:
            raise TlsError(f"{files.trusted} cannot be used: {_reason(error)}") from None
    return context


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", "") or getattr(error, "strerror", "") or error)


class Tls:
    """The certificate in force, and whether clients must speak TLS."""

    def __init__(self, files: TlsFiles, mode: str) -> None:
        self.is_enforced = mode == ENFORCING
        self.context = make_context(files)
        self.refused = 0  # handshakes and plain connections
        self._files = files
        self._marks = self._read_marks()
        self._logged_at = float("-inf")

    def reload(self) -> None:
        """Load the files again; open connections continue."""
        self._marks = self._read_marks()
        try:
            self.context = make_context(self._files)
        except TlsError as error:
            log.error("certificates are not reloaded: the old ones stay", reason=str(error))
        else:
            log.info("certificates reloaded", certificate=self._files.certificate)

    async def watch(self, clock: Clock) -> None:
        """Reload the files when they change, until cancelled."""
        while True:
            await clock.sleep(CHECK_EVERY_S)
            if self._read_marks() != self._marks:
                self.reload()

    def _read_marks(self) -> list[tuple[int, int, int]]:
        marks = []
        for path in self._files.paths:
            try:
                facts = os.stat(path)
            except OSError:
                continue
            marks.append((facts.st_mtime_ns, facts.st_size, facts.st_ino))
        return marks

    def log_refusal(self, connection: Connection, reason: str) -> None:
        self.refused += 1
        now = monotonic()
        if now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            log.info("TLS connection refused", peer=connection.name, reason=reason)


class Sniffer(asyncio.Protocol):
    """Waits for a client's first bytes, then connects the transport to TLS or to the connection."""

    def __init__(self, connection: Connection, tls: Tls) -> None:
        self._connection = connection
        self._tls = tls
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connection.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        transport, connection = self._transport, self._connection
        assert transport is not None
        if data[0] == HANDSHAKE_BYTE:
            upgraded = TlsTransport(transport, connection, self._tls)
            transport.set_protocol(upgraded)
            connection.use_transport(upgraded)
            upgraded.data_received(data)
        elif self._tls.is_enforced:
            self._tls.log_refusal(connection, "plain bytes, and tls.server.mode is enforcing")
            transport.abort()
        else:
            transport.set_protocol(connection)
            connection.data_received(data)

    def eof_received(self) -> bool:
        return self._connection.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.connection_lost(error)


def certified_names(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """The common name and the alternative names of a client's certificate, which is verified."""
    if not certificate:
        return frozenset()
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    names = [value for key, value in subject if key == "commonName"]
    names += [value for _, value in certificate.get("subjectAltName", ())]
    return frozenset(names)


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """The protocol of the socket's transport, and the transport of a connection.

    All bytes of the connection go through the cipher."""

    def __init__(self, raw: asyncio.Transport, connection: Connection, tls: Tls) -> None:
        super().__init__()
        self._raw = raw
        self._connection = connection
        self._tls = tls
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = tls.context.wrap_bio(self._in, self._out, server_side=True)
        self._is_open = False  # the handshake is done
        self._is_closing = False
        self._unsent: list[bytes | bytearray | memoryview] = []  # written before that
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_S, self._too_late)

    # --- the socket's side

    def data_received(self, data: bytes) -> None:
        self._in.write(data)
        try:
            if not self._is_open and not self._shake_hands():
                return
            chunks = self._decrypted()
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._flush()
        if chunks:
            self._connection.data_received(chunks[0] if len(chunks) == 1 else b"".join(chunks))

    def _shake_hands(self) -> bool:
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        self._is_open = True
        self._deadline.cancel()
        self._connection.certified = certified_names(self._ssl.getpeercert())
        unsent, self._unsent = self._unsent, []
        for piece in unsent:
            self.write(piece)
        return True

    def _decrypted(self) -> list[bytes]:
        chunks: list[bytes] = []
        while not self._is_closing:
            try:
                chunk = self._ssl.read(READ_SIZE)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:  # the client sent close_notify
                chunk = b""
            if not chunk:
                asyncio.get_running_loop().call_soon(self._ended)
                break
            chunks.append(chunk)
        return chunks

    def _ended(self) -> None:
        if not self._is_closing and not self._connection.eof_received():
            self.close()

    def eof_received(self) -> bool:
        if self._is_open:
            return self._connection.eof_received()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._deadline.cancel()
        self._is_closing = True
        self._connection.connection_lost(error)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def _fail(self, error: ssl.SSLError) -> None:
        self._flush()  # an alert tells the client what is wrong
        self._tls.log_refusal(self._connection, _reason(error))
        self._is_closing = True
        self._raw.close()

    def _too_late(self) -> None:
        self._tls.log_refusal(self._connection, f"no handshake within {HANDSHAKE_S:g} s")
        self.abort()

    def _flush(self) -> None:
        if self._out.pending:
            self._raw.write(self._out.read())

    # --- the connection's side

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or not data:
            return
        if not self._is_open:
            self._unsent.append(data)
            return
        view = memoryview(data)
        try:
            while view:
                view = view[self._ssl.write(view) :]
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._flush()

    def writelines(self, parts: Iterable[Any]) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        if self._is_open:
            with contextlib.suppress(ssl.SSLError):  # we do not wait for the client's close_notify
                self._ssl.unwrap()
            self._flush()
        self._raw.close()

    def abort(self) -> None:
        self._is_closing = True
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._raw.is_closing()

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Without the socket: bytes written to it directly would not be encrypted."""
        if name == "ssl_object":
            return self._ssl
        return default if name == "socket" else self._raw.get_extra_info(name, default)


def protocol_factory(
    make: Callable[[], Connection], tls: Tls | None
) -> Callable[[], asyncio.Protocol]:
    """What a listening socket makes for each client."""
    return make if tls is None else lambda: Sniffer(make(), tls)
