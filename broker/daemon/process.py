"""The life of the process: settings, event loop, signals, systemd, ready line, stop, exit code."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import structlog

from aerobee.broker.base.logs import configure_logs, set_level
from aerobee.broker.daemon.garbage import Garbage, use_one_heap
from aerobee.broker.daemon.systemd import Notifier
from aerobee.broker.net.listening import StartError, raise_open_files_limit
from aerobee.broker.settings import Settings, SettingsError
from aerobee.broker.settings.known import known_keys
from aerobee.broker.store.errors import StoreError

log = structlog.get_logger("aerobee.process")

_STATUS_S: Final = 10.0
_EXTEND_S: Final = 60.0  # how much more time a start or a stop asks systemd for, each _STATUS_S


class Daemon(Protocol):
    """What this module runs: a broker, or a name server alone."""

    progress: str  # what it is doing while it starts

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def give_up_start(self) -> None: ...
    def reload(self) -> None: ...
    def ready_line(self) -> str: ...
    def status(self) -> str: ...


def run_daemon(make: Callable[[Settings], Daemon], load: Callable[[], Settings]) -> int:
    """Run until SIGTERM or SIGINT; the exit code. `load` is called again for a SIGHUP."""
    _open_closed_streams()
    use_one_heap()
    try:
        settings = load()
    except SettingsError as error:
        return _print_error(str(error))
    configure_logs(settings.log_level, settings.log_format)
    for warning in settings.warnings:
        log.warning("settings", warning=warning)
    raise_open_files_limit()
    settings.listeners.append(lambda _keys: set_level(settings.log_level))
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_live(make, settings, load))
    except (StartError, StoreError) as error:
        return _print_error(str(error))


def _print_error(text: str) -> int:
    for line in text.splitlines():
        print(f"aerobee: {line}", file=sys.stderr)
    return 1


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        log.warning("uvloop is not installed: the slower loop of asyncio is used")
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _live(
    make: Callable[[Settings], Daemon], settings: Settings, load: Callable[[], Settings]
) -> int:
    daemon = make(settings)
    notifier = Notifier()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _asked_to_stop, number, stop, daemon)
    loop.add_signal_handler(signal.SIGHUP, _reload, settings, load, notifier, daemon)
    watchdog = asyncio.ensure_future(_feed_watchdog(notifier))
    try:
        await _with_more_time(notifier, lambda: daemon.progress, daemon.start())
        if not stop.is_set():
            garbage = Garbage()
            garbage.begin()
            _print_ready(daemon.ready_line())
            notifier.ready(daemon.status())
            status = asyncio.ensure_future(_report_status(notifier, daemon, garbage))
            await stop.wait()
            status.cancel()
            garbage.end()
        notifier.stopping()
        await _with_more_time(notifier, lambda: "stopping", daemon.stop())
        log.info("stopped")
        return 0
    finally:
        watchdog.cancel()


def _print_ready(line: str) -> None:
    """On stdout. A parent that does not read it is no reason to stop."""
    try:
        print(line, flush=True)
    except OSError as error:
        log.warning("the ready line could not be written", line=line, error=str(error))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else the interpreter's end tries again


def _open_closed_streams() -> None:
    """Open what was closed as /dev/null, before a file of ours gets its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


def _asked_to_stop(number: int, stop: asyncio.Event, daemon: Daemon) -> None:
    log.info("stopping", signal=signal.Signals(number).name)
    stop.set()
    daemon.give_up_start()


async def _feed_watchdog(notifier: Notifier) -> None:
    """Fed by the event loop, so a blocked loop is noticed."""
    while notifier.watchdog_seconds:
        notifier.alive()
        await asyncio.sleep(notifier.watchdog_seconds / 3)


async def _report_status(notifier: Notifier, daemon: Daemon, garbage: Garbage) -> None:
    while True:
        notifier.status(daemon.status())
        garbage.look()
        await asyncio.sleep(_STATUS_S)


async def _with_more_time(
    notifier: Notifier, describe: Callable[[], str], work: Coroutine[Any, Any, None]
) -> None:
    """Do the work; while it lasts, extend systemd's timeout."""

    async def extend() -> None:
        while True:
            notifier.extend(_EXTEND_S)
            notifier.status(describe())
            await asyncio.sleep(min(_STATUS_S, 1.0))

    extending = asyncio.ensure_future(extend())
    try:
        await work
    finally:
        extending.cancel()


def _reload(
    settings: Settings, load: Callable[[], Settings], notifier: Notifier, daemon: Daemon
) -> None:
    """SIGHUP: apply what can change in a running broker, and log what cannot."""
    notifier.reloading(time.monotonic_ns())
    try:
        changed, kept = reload_settings(settings, load())
    except SettingsError as error:
        log.error("settings not reloaded", reason=str(error))
    else:
        log.info("settings reloaded", changed=changed)
        if kept:
            log.warning("these settings change with the next restart only", settings=kept)
    daemon.reload()
    notifier.reloaded(daemon.status())


def reload_settings(settings: Settings, fresh: Settings) -> tuple[list[str], list[str]]:
    """Bring `settings` to what `fresh` says; returns the keys changed and those that need a
    restart."""
    differing = [
        known
        for known in known_keys().values()
        if known.attribute and settings.value_of(known) != fresh.value_of(known)
    ]
    live = {known.key: str(fresh.value_of(known)) for known in differing if known.about.runtime}
    settings.change(live)
    return sorted(live), sorted(known.key for known in differing if not known.about.runtime)
