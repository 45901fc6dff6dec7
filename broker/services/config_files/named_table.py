"""Configurations by name with RocketMQ's version of the table: what topics and groups have in
common."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from aerobee.broker.base.clock import Clock
from aerobee.broker.services.config_files.config_file import DataVersion
from aerobee.broker.services.config_files.table_file import TableFile
from aerobee.broker.settings import Settings
from aerobee.broker.store.files.disk import Disk
from aerobee.protocol.files.config_journal import Change, Path

VERSION: Final = "dataVersion"

Config = TypeVar("Config")


class NamedTable(Generic[Config]):
    """`on_change` is called with a name after its configuration changed or went."""

    def __init__(
        self, path: str, settings: Settings, clock: Clock, disk: Disk | None = None
    ) -> None:
        self.data_version = DataVersion(clock.now_ms())
        self.on_change: list[Callable[[str], None]] = []
        self.file = TableFile(path, clock, self._entries, self._value_of, disk)
        self._settings = settings
        self._clock = clock
        self._table: dict[str, Config] = {}
        self._unknown: dict[str, Any] = {}  # other keys of the file, kept

    def all(self) -> Mapping[str, Config]:
        """A live view of the table."""
        return MappingProxyType(self._table)

    def _read(self, sections: Iterable[str]) -> list[dict[Any, Any]]:
        """These sections of the file; other keys of the file are kept."""
        content = self.file.load() or {}
        self.data_version.load(content.get(VERSION))
        known = (VERSION, *sections)
        self._unknown = {str(key): value for key, value in content.items() if key not in known}
        found = (content.get(section) for section in sections)
        return [section if isinstance(section, dict) else {} for section in found]

    def _changed(self, name: str, *paths: Path) -> None:
        """A new version of the table has these entries, which are of one name."""
        self.next_version(*paths)
        self._notify([name])

    def next_version(self, *paths: Path) -> None:
        """Notify listeners of a change: these entries, or something that is not in the file."""
        self.data_version.next(self._clock.now_ms())
        self.file.changed(*(paths or ((VERSION,),)))

    def _notify(self, names: Iterable[str]) -> None:
        for name in names:
            for callback in self.on_change:
                callback(name)

    def _entries(self) -> Iterator[Change]:
        """All that the file holds, in its order."""
        yield (VERSION,), self.data_version.to_json()
        for key, value in self._unknown.items():
            yield (key,), value

    def _value_of(self, path: Path) -> Any:
        """One entry as it is now; None when it is gone."""
        raise NotImplementedError
