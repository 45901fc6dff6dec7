"""The real disk, whose syncs under config/ block until a test releases them, or fail."""

from __future__ import annotations

import os
import threading
from collections import Counter
from typing import Any

from aerobee.broker.store.files.real_disk import RealDisk, RealFile


class GatedFile:
    def __init__(self, file: RealFile, disk: GatedDisk) -> None:
        self._file = file
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        self._disk.pass_gate(self._file.path)
        self._file.sync()

    def write(self, position: int, data: bytes) -> None:
        self._disk.written[os.path.basename(self._file.path)] += len(data)
        self._file.write(position, data)


class GatedDisk(RealDisk):
    """`hold()` blocks every sync of a config file before it starts, `let_go()` releases them."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.error: OSError | None = None  # raised by each sync
        self.passed: list[str] = []  # paths of config files that were synced
        self.stopped = 0  # syncs that were blocked
        self.written: Counter[str] = Counter()  # bytes, by the name of the config file
        self.threads: set[str] = set()  # that synced config files

    def hold(self) -> None:
        self._open.clear()

    def let_go(self) -> None:
        self._open.set()

    def pass_gate(self, path: str) -> None:
        if "/config/" not in path:
            return
        if not self._open.is_set():
            self.stopped += 1
        assert self._open.wait(30), "the test did not let go"
        self.threads.add(threading.current_thread().name)
        if self.error is not None:
            raise self.error
        self.passed.append(path)

    def create(self, path: str, size: int) -> Any:
        file = super().create(path, size)
        return GatedFile(file, self) if "/config/" in path else file

    def open(self, path: str) -> Any:
        file = super().open(path)
        return GatedFile(file, self) if "/config/" in path else file

    def write_small(self, path: str, data: bytes, mode: int = 0o644) -> None:
        self.pass_gate(path)
        if "/config/" in path:
            self.written[os.path.basename(path)] += len(data)
        super().write_small(path, data, mode)
