"""A page as a new user follows it: its blocks are run, in order, in a clone of the project."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from peers.apache import STORE_SIZES
from peers.tools import free_port, wait_for

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str) -> list[tuple[str, str]]:
    """The kind and the text of each block."""
    return re.findall(r"```(\w+)\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def outside_of_the_venv() -> dict[str, str]:
    """An environment in which `python3` is not this Python, as where no venv is activated."""
    here = str(Path(sys.executable).parent)
    paths = [path for path in os.environ["PATH"].split(os.pathsep) if path != here]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYSPARK_")}
    return environment | {"PATH": os.pathsep.join(paths), "SPARK_LOCAL_IP": "127.0.0.1"}


def terminal(clone: Path, namesrv_port: int) -> dict[str, str]:
    """The environment of a page's commands: its venv, once it has made one, and a broker's settings
    that leave other brokers of this machine alone. The compiled part is built without optimizing,
    which takes half of the time."""
    environment = outside_of_the_venv()
    # The Python that this one's venv was made with makes the page's.
    first = [str(clone / ".venv/bin"), str(Path(sys.base_prefix) / "bin")]
    settings = STORE_SIZES | {
        "storePathRootDir": str(clone / "store"),
        "listenPort": f"{free_port(-2, 1)}",
        "namesrvListenPort": f"{namesrv_port}",
        "metricsExporterType": "DISABLE",
    }
    return (
        environment
        | {"PATH": os.pathsep.join([*first, environment["PATH"]]), "AEROBEE_CFLAGS": "-O0"}
        | {f"AEROBEE_{key.upper()}": value for key, value in settings.items()}
    )


@contextmanager
def followed(
    page: str, clone: Path, instead: Mapping[str, str] | None = None
) -> Iterator[dict[str, str]]:
    """The output of each command, by its text. All is run in `clone`, a folder to be made: it holds
    what is committed. `instead`: ports of the test in the place of the page's. What a command left
    running is killed at the end."""
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True, timeout=60)
    namesrv_port = free_port()
    environment = terminal(clone, namesrv_port)
    said: dict[str, str] = {}
    groups: list[int] = []
    try:
        for kind, text in blocks(page):
            for here, there in {"9876": f"{namesrv_port}", **(instead or {})}.items():
                text = text.replace(here, there)
            if kind == "python":
                (clone / text.splitlines()[0].removeprefix("# ")).write_text(text)
            elif kind == "sh":
                output = clone / f"block-{len(groups)}.log"
                with output.open("w") as log:
                    process = subprocess.Popen(
                        ["sh", "-ec", text],
                        cwd=clone,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                groups.append(process.pid)
                wait_for(partial(is_done, process, output), timeout=600, what=text)
                said[text] = output.read_text()
                logs = {file.name: file.read_text()[-4000:] for file in clone.glob("*.log")}
                assert not process.returncode, f"{text}\n{logs}"
        yield said
    finally:
        for group in groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it left nothing running
        shutil.rmtree(clone / ".venv", ignore_errors=True)  # more than a GB


def is_done(block: subprocess.Popen[bytes], output: Path) -> bool:
    """It has ended, or the broker that it leaves running is ready."""
    return block.poll() is not None or "ready broker=" in output.read_text()


def check_said(said: Mapping[str, str], expected: Mapping[str, list[str]]) -> None:
    """Each text in the output of the one command that has the word in it."""
    for word, texts in expected.items():
        (output,) = [output for code, output in said.items() if word in code]
        for text in texts:
            assert text in output, f"{word}: {text!r} is not in\n{output}"
