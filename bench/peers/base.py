"""What every peer offers: a server process, the client that drives it, and two ways to flush."""

from __future__ import annotations

import re
import shutil
import subprocess
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from bench.driver import BUILD, LineDriver
from bench.process import ServerProcess

GO_PROJECT = Path(__file__).parent.parent / "go"
GO_DRIVER = BUILD / "go-driver"


class Peer(ServerProcess):
    """A server in files under `folder` with its driver; `sync`: flushed before it is answered."""

    title: ClassVar[str]
    client: ClassVar[str]  # which client drives it, for the reader of the table
    unflushed: ClassVar[str]  # its setting that answers before the disk has the message
    flushed: ClassVar[str]  # and the one that answers after
    flushed_part: ClassVar[int] = 1  # rows send a part of the messages where each is flushed alone

    def __init__(self, folder: Path, *, sync: bool) -> None:
        super().__init__(self.title, folder)
        self.sync = sync

    @classmethod
    @abstractmethod
    def prepare(cls) -> None:
        """Builds what is missing; ends the program with a sentence when a tool is."""

    @abstractmethod
    def run(self, mode: str, **options: Any) -> dict[str, Any]:
        """A row: `send`, `pull` or `count`."""

    @abstractmethod
    def close(self) -> None:
        """Ends server and driver."""


class DrivenPeer(Peer):
    """A peer whose driver runs beside it and knows `first` as well."""

    def __init__(self, folder: Path, *, sync: bool) -> None:
        super().__init__(folder, sync=sync)
        self.driver = LineDriver(self.driver_command(), folder / "driver.log")

    @abstractmethod
    def driver_command(self) -> list[str]:
        """What to run as the driver."""

    def start(self) -> float:
        self.driver.run("first")  # nobody answers yet, but the driver itself is up
        return super().start()

    def accepts(self) -> bool:
        return bool(self.driver.run("first")["n"])

    def run(self, mode: str, **options: Any) -> dict[str, Any]:
        return self.driver.run(mode, **options)

    def close(self) -> None:
        self.kill()
        self.driver.close()


def build_go_driver() -> None:
    if shutil.which("go") is None:
        raise SystemExit("not found on PATH: go; get Go 1.26 or newer from go.dev/dl")
    go_build(GO_DRIVER, ".")


def go_build(target: Path, package: str) -> None:
    """Go itself knows what is up to date; the versions are pinned in bench/go/go.sum."""
    target.parent.mkdir(exist_ok=True)
    subprocess.run(["go", "build", "-o", target, package], cwd=GO_PROJECT, check=True)


def go_version(module: str) -> str:
    """The version of a module in bench/go/go.mod."""
    found = re.search(rf"{re.escape(module)} v(\S+)", (GO_PROJECT / "go.mod").read_text())
    assert found is not None, f"{module} is not in go.mod"
    return found[1]
