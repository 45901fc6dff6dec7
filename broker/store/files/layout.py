"""Paths and names of the store's own files. A file that only one service writes is named in that
service; those under `config/` are in `services/config_files/classes.py`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

NAME_DIGITS = 20


def offset_name(offset: int) -> str:
    """The name of the stream's file that starts at this byte."""
    return f"{offset:0{NAME_DIGITS}d}"


def parse_offset_name(name: str) -> int | None:
    """The start offset in a file name; None for a file that does not belong to a stream."""
    return int(name) if len(name) == NAME_DIGITS and name.isascii() and name.isdigit() else None


def index_name(now_ms: int) -> str:
    """yyyyMMddHHmmssSSS in local time."""
    return time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03d}"


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one store."""

    root: str
    commitlog: str

    @property
    def consumequeue(self) -> str:
        return os.path.join(self.root, "consumequeue")

    @property
    def consumequeue_ext(self) -> str:
        return os.path.join(self.root, "consumequeue_ext")

    @property
    def index(self) -> str:
        return os.path.join(self.root, "index")

    @property
    def checkpoint(self) -> str:
        return os.path.join(self.root, "checkpoint")

    @property
    def abort(self) -> str:
        return os.path.join(self.root, "abort")

    @property
    def lock(self) -> str:
        return os.path.join(self.root, "lock")

    @property
    def config(self) -> str:
        return os.path.join(self.root, "config")

    def queue_folder(self, topic: str, queue_id: int) -> str:
        return os.path.join(self.consumequeue, topic, str(queue_id))

    def queue_ext_folder(self, topic: str, queue_id: int) -> str:
        return os.path.join(self.consumequeue_ext, topic, str(queue_id))
