"""A page as a new user follows it: its blocks are run in order, in one folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str) -> list[tuple[str, str]]:
    """The kind and the text of each block."""
    return re.findall(r"```(\w+)\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


@contextmanager
def followed(
    page: str,
    folder: Path,
    instead: Mapping[str, str],
    more: Mapping[str, str] | None = None,
) -> Iterator[dict[str, str]]:
    """The output of each command, by its text. `instead`: addresses of the test in the place of the
    page's. What a command left running is killed at the end."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        **(more or {}),
    }
    said: dict[str, str] = {}
    groups = []
    try:
        for kind, text in blocks(page):
            for here, there in instead.items():
                text = text.replace(here, there)
            if kind == "python":
                (folder / text.splitlines()[0].removeprefix("# ")).write_text(text)
            elif kind == "sh":
                process = subprocess.Popen(
                    ["sh", "-ec", text],
                    cwd=folder,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                )
                groups.append(process.pid)
                said[text] = process.communicate(timeout=600)[0]
                logs = {file.name: file.read_text()[-2000:] for file in folder.glob("*.log")}
                assert process.returncode == 0, f"{text}\n{said[text][-4000:]}\n{logs}"
        yield said
    finally:
        for group in groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it left nothing running


def check_said(said: Mapping[str, str], expected: Mapping[str, list[str]]) -> None:
    """Each text in the output of the one command that has the word in it."""
    for word, texts in expected.items():
        (output,) = [output for code, output in said.items() if word in code]
        for text in texts:
            assert text in output, f"{word}: {text!r} is not in\n{output}"
