"""A table under config/ with its journal, without a service around it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aerobee.broker.base.clock import Clock
from aerobee.broker.services.config_files.table_file import TableFile
from aerobee.protocol.files import config_journal
from aerobee.protocol.files.config_journal import Change
from aerobee.protocol.json import fastjson


class Table:
    """Texts by name, as a service keeps them."""

    def __init__(self, path: Path) -> None:
        self.values: dict[str, Any] = {}
        self.version = 0
        self.file = TableFile(str(path), Clock(), self._entries, self._value_of)

    def _entries(self) -> Iterator[Change]:
        yield ("dataVersion",), {"counter": self.version}
        for name in list(self.values):
            yield ("table", name), self.values[name]

    def _value_of(self, path: tuple[str, ...]) -> Any:
        return {"counter": self.version} if len(path) == 1 else self.values.get(path[1])

    def put(self, name: str, value: Any) -> None:
        self.values[name] = value
        self.version += 1
        self.file.changed_lazily(("table", name))

    def delete(self, name: str) -> None:
        del self.values[name]
        self.version += 1
        self.file.changed_lazily(("table", name))

    def load(self) -> dict[str, Any]:
        content = self.file.load() or {}
        self.values = dict(content.get("table", {}))
        self.version = content.get("dataVersion", {}).get("counter", 0)
        return self.values


def journal_of(path: Path) -> Path:
    return path.with_name(path.name + config_journal.SUFFIX)


def after_a_kill(path: Path) -> dict[str, str]:
    """What a start would find in the folder as it is now."""
    copy = path.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for file in path.parent.glob("table.json*"):
        shutil.copy(file, copy)
    return Table(copy / path.name).load()


def content_of(path: Path) -> Any:
    return fastjson.loads(path.read_bytes())["table"]


def saved_table(path: Path) -> Table:
    """A table with a JSON file that has one name, and a journal that has two changes."""
    table = Table(path)
    table.put("a", "json")
    assert table.file.step()
    table.put("b", "journal")
    assert table.file.step()
    table.put("c", "journal")
    assert table.file.step()
    assert "journal" not in path.read_text() and journal_of(path).exists()
    return table
