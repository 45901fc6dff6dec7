"""`aerobee store` on the folder of a store, and damage to its files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from aerobee.broker.store.inspect.files import open_directory
from aerobee.broker.store.inspect.verify import verify
from aerobee.client.cli.failures import Failure
from aerobee.client.cli.store import store as store_command

TOPICS = ("Orders", "Größe")
COUNT = 600


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(store_command, list(words), standalone_mode=False)
    if isinstance(result.exception, Failure):
        return result.exception.status, result.exception.message
    if result.exception is not None:
        raise result.exception
    return int(result.return_value or 0), result.output


def kill(folder: Path) -> None:
    """As a kill leaves it before the first checkpoint."""
    (folder / "abort").touch()
    (folder / "checkpoint").unlink()


def problems(folder: Path) -> list[str]:
    return [str(each) for each in verify(open_directory(str(folder)), lambda _: None).problems]


def files(folder: Path, part: str) -> list[Path]:
    return sorted(path for path in (folder / part).rglob("*") if path.is_file())


def change(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def content(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def dump(folder: Path, *words: str) -> Result:
    words = ("dump", str(folder), "--json", *words)
    return CliRunner().invoke(store_command, words, standalone_mode=False)


def dumped(folder: Path, *words: str) -> list[Any]:
    status, text = run("dump", str(folder), "--json", *words)
    assert status == 0
    return [json.loads(line) for line in text.splitlines()]
