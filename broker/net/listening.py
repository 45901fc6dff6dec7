"""Sockets from settings: which addresses and ports, and what to do when one is taken."""

import contextlib
import errno
import resource
import socket

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.net.feed import Limits
from aerobee.broker.net.quotas import InFlight, Most, Quotas
from aerobee.broker.net.server import bind, bind_pair
from aerobee.broker.net.tls import DISABLED, ENFORCING, Tls, TlsError, TlsFiles
from aerobee.broker.settings import Settings

log = structlog.get_logger("aerobee.listening")


class StartError(Exception):
    """The process cannot start; the text is meant for the operator."""


def limits_of(settings: Settings) -> Limits:
    """Limits of one connection."""
    defaults = Limits()
    return Limits(
        frame_size_max=settings.frame_max_length,
        write_buffer_max=settings.write_buffer_high_water_mark or defaults.write_buffer_max,
        idle_seconds=settings.server_channel_max_idle_time_seconds,
        header_seconds=min(defaults.header_seconds, settings.frame_timeout_seconds),
        frame_seconds=settings.frame_timeout_seconds,
    )


def quotas_of(settings: Settings, clock: Clock, in_flight: InFlight) -> Quotas | None:
    """The limits per address and per user; None: none is set."""
    # Connections of an address are counted when they open, by the server.
    address = Most(0, settings.max_requests_per_address, settings.max_bytes_per_second_per_address)
    user = Most(
        settings.max_connections_per_user,
        settings.max_requests_per_user,
        settings.max_bytes_per_second_per_user,
    )
    return None if address == user == Most() else Quotas(address, user, clock, in_flight)


def tls_of(settings: Settings) -> Tls | None:
    """The certificate and the TLS mode for clients; None: connections are plain."""
    if settings.tls_server_mode == DISABLED:
        return None
    if not settings.tls_server_cert_path or not settings.tls_server_key_path:
        if settings.tls_server_mode == ENFORCING or settings.tls_server_cert_path:
            raise StartError(
                f"tls.server.mode={settings.tls_server_mode} needs tls.server.certPath and "
                "tls.server.keyPath: name a certificate and its key"
            )
        return None
    files = TlsFiles(
        settings.tls_server_cert_path,
        settings.tls_server_key_path,
        settings.tls_server_key_password,
        settings.tls_server_trust_cert_path,
        settings.tls_server_need_client_auth,
    )
    try:
        return Tls(files, settings.tls_server_mode)
    except TlsError as error:
        raise StartError(str(error)) from error


def open_broker_sockets(settings: Settings) -> tuple[socket.socket, socket.socket]:
    """Bound to listenPort and listenPort - 2; found together when the port is 0."""
    try:
        main, fast = bind_pair(settings.bind_address, settings.listen_port)
    except OSError as error:
        raise _start_error(
            error,
            "choose another pair of ports with --set listenPort=PORT (PORT - 2 is used too; "
            "0 takes free ones)",
        ) from error
    for sock in (main, fast):
        _set_buffers(sock, settings)
    return main, fast


def open_name_service_socket(settings: Settings) -> socket.socket | None:
    """Bound to namesrvListenPort; None when that is -1."""
    if settings.namesrv_listen_port < 0:
        return None
    try:
        sock = bind(settings.bind_address, settings.namesrv_listen_port)
    except OSError as error:
        raise _start_error(
            error,
            "choose another port for the name service with --set namesrvListenPort=PORT "
            "(0 takes a free one, -1 runs without)",
        ) from error
    _set_buffers(sock, settings)
    return sock


def open_replication_socket(settings: Settings, main_port: int) -> socket.socket | None:
    """Bound to haListenPort, which is listenPort + 1 unless it was set; None when that is -1. A
    broker without slaves does without the port when another process has it."""
    port = settings.ha_listen_port
    if port < 0:
        return None
    try:
        return bind(settings.bind_address, port or main_port + 1)
    except (OSError, OverflowError) as error:
        if settings.listen_port == 0 and not port:
            return bind(settings.bind_address, 0)
        if isinstance(error, OSError) and (port or settings.broker_role != "ASYNC_MASTER"):
            raise _start_error(
                error,
                "choose another port for slaves with --set haListenPort=PORT (-1: none)",
            ) from error
        log.warning("no slave can follow this broker", reason=str(error), remedy="set haListenPort")
        return None


def _start_error(error: OSError, other_port: str) -> StartError:
    reason = str(error.strerror or error).split(";")[0]
    about_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
    remedy = other_port if about_port else "give an address of this machine: --set bindAddress=IP"
    return StartError(f"{reason}; {remedy}")


def _set_buffers(sock: socket.socket, settings: Settings) -> None:
    """Connections inherit the buffer sizes of the socket that accepts them."""
    if settings.server_socket_snd_buf_size:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.server_socket_snd_buf_size)
    if settings.server_socket_rcv_buf_size:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.server_socket_rcv_buf_size)


def raise_open_files_limit() -> None:
    """Raise the limit of open files to what the system allows: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # macOS refuses an infinite soft limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    memlock, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    log.info("limits", open_files=_limit(soft), locked_memory_bytes=_limit(memlock))


def _limit(value: int) -> int | str:
    return "unlimited" if value == resource.RLIM_INFINITY else value
