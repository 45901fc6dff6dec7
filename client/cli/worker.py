"""`aerobee worker`: runs the handlers of an application, and again when its files change."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Final

import click

from aerobee.client.cli.failures import FAILED, UNREACHED, WRONG_USAGE, Failure
from aerobee.client.errors import AerobeeError, ConnectFailed
from aerobee.client.worker import Worker

CHECK_SECONDS: Final = 0.5
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
RELOADER: Final = "AEROBEE_RELOADER"  # the process that --reload runs in, for its child


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.option("--url", envvar="AEROBEE_URL", help="Name servers, instead of the app's own.")
@click.option("--concurrency", type=click.IntRange(1), help="Handlers at a time, for each topic.")
@click.option("--reload", is_flag=True, help="Start again when a .py file below changes.")
def worker(target: str, url: str | None, concurrency: int | None, reload: bool) -> int:
    """Run the handlers of an application: MODULE:APP names an `aerobee.Worker`.

    SIGTERM and Ctrl-C let running handlers finish and commit; a second one ends at once.
    """
    if reload:
        return _run_again_and_again([word for word in sys.argv[1:] if word != "--reload"])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    app = _load(target)
    app.url = url or app.url
    try:
        asyncio.run(_run(app, concurrency))
    except ConnectFailed as error:
        raise Failure(str(error), UNREACHED) from None
    except AerobeeError as error:
        raise Failure(str(error), FAILED) from None
    return 0


def _load(target: str) -> Worker:
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise Failure(f"{target!r} is not MODULE:APP, as in shop.worker:app", WRONG_USAGE)
    sys.path.insert(0, os.getcwd())
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # a module that the application imports is missing
        raise Failure(f"there is no module {module!r} here", WRONG_USAGE) from None
    app = getattr(found, name, None)
    if not isinstance(app, Worker):
        raise Failure(f"{target} is not an aerobee.Worker", WRONG_USAGE)
    return app


async def _run(app: Worker, concurrency: int | None) -> None:
    loop = asyncio.get_running_loop()
    is_child = os.environ.get(RELOADER) == str(os.getppid())

    def stop(kind: signal.Signals) -> None:
        # A terminal's Ctrl-C reaches both, and the parent adds a SIGTERM: that is one stop.
        for number in (kind,) if is_child else SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)  # the next one ends the process
        click.echo("stopping: running handlers finish first", err=True)
        app.stop()

    for number in SIGNALS:
        loop.add_signal_handler(number, stop, number)
    click.echo("working; Ctrl-C stops", err=True)
    await app.run(concurrency=concurrency)


def _run_again_and_again(arguments: list[str]) -> int:
    """A child process runs the handlers; it is restarted after each change of a file."""
    stopped: list[int] = []
    # Bytecode is matched to its source by second and size: a quick change would not be seen.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", RELOADER: str(os.getpid())}
    for number in SIGNALS:
        signal.signal(number, lambda number, _: stopped.append(number))
    while True:
        seen = _stamps()
        command = [sys.executable, "-m", "aerobee.client.cli.worker", *arguments]
        child = subprocess.Popen(command, env=environment)
        while not stopped and _stamps() == seen:
            time.sleep(CHECK_SECONDS)  # a child that crashed is restarted at the next change
        if child.poll() is None:
            child.terminate()
        code = child.wait()
        if stopped:
            return code
        click.echo("a file has changed: restarting", err=True)


def _stamps() -> dict[str, float]:
    """When each source file below the folder was changed."""
    found = {}
    for folder, folders, files in os.walk("."):
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
        for name in files:
            path = Path(folder, name)
            if path.suffix == ".py" and path.exists():
                found[str(path)] = path.stat().st_mtime
    return found


if __name__ == "__main__":
    from aerobee.client.cli import main

    main()
