"""The `aerobee` command, imported once: each call is a fork of this process, with arguments,
environment, folder, standard streams and exit code of its own. It saves the time of the imports.

A program, not a module: `python warm_command.py SOCKET`. The caller is `aerobee_command.py`.
"""

import atexit
import gc
import json
import os
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

from aerobee.broker.base.lean_import import lean_import


def main() -> None:
    """Serves calls; returns in the process of each call, and there only."""
    sys.path.pop(0)  # the folder of this program
    control = socket.socket(fileno=int(sys.argv[1]))
    from aerobee.client.cli.commands import COMMANDS

    for module in {row[0] for row in COMMANDS.values()}:
        import_module(f"aerobee.client.cli.{module}")
    import rich.console
    import rich.table  # noqa: F401

    gc.collect()
    gc.freeze()  # a collection in a call would write to all of it, and so copy it
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    told: dict[int, int] = {}  # process of a call: where its exit code goes
    while True:
        sources: list[Any] = [control, ended]
        readable, _, _ = select.select(sources, [], [])
        if ended in readable:
            os.read(ended, 1000)
            while told and (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = found
                os.write(told[pid], b"%d\n" % os.waitstatus_to_exitcode(status))
                os.close(told.pop(pid))
        if control in readable:
            call, files, _, _ = socket.recv_fds(control, 1 << 20, 4)
            if not call:
                os._exit(0)  # the tests are over
            *streams, answer = files
            if json.loads(call)["words"][:1] in (["broker"], ["namesrv"]):
                import_daemon()
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for file in (control.detach(), ended, wake, answer, *told.values()):
                    os.close(file)
                become(json.loads(call), streams)
                return
            os.write(answer, b"%d\n" % pid)
            told[pid] = answer
            for file in streams:
                os.close(file)


@cache
def import_daemon() -> None:
    with lean_import():
        import_module("aerobee.broker.daemon.main")
    gc.freeze()


def become(call: dict[str, object], streams: list[int]) -> None:
    """What the interpreter does at its start: arguments, environment, standard streams."""
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)
    words, environment, folder = call["words"], call["environment"], call["folder"]
    assert isinstance(words, list) and isinstance(environment, dict) and isinstance(folder, str)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv[:] = ["aerobee", *words]
    standard: Any = sys
    standard.stdin = standard.__stdin__ = open(0, errors=sys.stdin.errors, closefd=False)  # noqa: SIM115
    standard.stdout = standard.__stdout__ = open(  # noqa: SIM115
        1, "w", errors=sys.stdout.errors, closefd=False
    )
    standard.stderr = standard.__stderr__ = open(  # noqa: SIM115
        2, "w", buffering=1, errors="backslashreplace", closefd=False
    )


def leave(code: object) -> None:
    """What the interpreter does at its end, but to free every module, which is most of it. Returns
    where something is out of the ordinary: then the interpreter does it itself."""
    if isinstance(code, int) and threading.active_count() == 1:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
            atexit._run_exitfuncs()
            sys.stdout.flush()
            os._exit(code)


if __name__ == "__main__":
    main()
    from aerobee.client.cli import main as command

    try:
        command()
    except SystemExit as end:
        leave(end.code)
        raise
