"""`aerobee broker` and `aerobee namesrv`: settings, then the daemon until it ends."""

from collections.abc import Sequence
from functools import partial

from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.daemon.namesrv import AppNameServer
from aerobee.broker.daemon.process import run_daemon
from aerobee.broker.settings import load_settings


def main_broker(config: str | None, sets: Sequence[str]) -> int:
    """`aerobee broker`; the exit code."""
    return run_daemon(AppBroker, partial(load_settings, config, sets))


def main_namesrv(config: str | None, sets: Sequence[str]) -> int:
    """`aerobee namesrv`; the exit code."""
    meant = {"listenPort": "namesrvListenPort"}  # what a namesrv.conf of Apache's calls it
    return run_daemon(AppNameServer, partial(load_settings, config, sets, meant=meant))
