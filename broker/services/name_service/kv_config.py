"""The name service's key-value table, by namespace; kvConfig.json in Apache's shape."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.refused import Refused
from aerobee.broker.services.config_files.table_file import TableFile
from aerobee.broker.store.files.disk import Disk
from aerobee.protocol.files.config_journal import Change, Path
from aerobee.protocol.wire.codes import ResponseCode

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"  # topic -> "broker-a:4;broker-b:4"
ENTRY_BYTES: Final = 200  # that an entry takes beside its texts
_TABLE: Final = "configTable"


class KvConfig:
    """Small texts that clients and administrators store in the name service."""

    def __init__(
        self, path: str, clock: Clock, bytes_max: Callable[[], int], disk: Disk | None = None
    ) -> None:
        self._table: dict[str, dict[str, str]] = {}
        self._bytes_max = bytes_max
        self.size = 0  # bytes, of all entries
        self.file = TableFile(path, clock, self._entries, self._value_of, disk)

    def load(self) -> None:
        table = (self.file.load() or {}).get(_TABLE)
        for namespace, values in (table if isinstance(table, dict) else {}).items():
            if isinstance(values, dict) and values:
                texts = {str(key): str(value) for key, value in values.items()}
                self._table[str(namespace)] = texts
        self.size = sum(
            _size(namespace, key, value)
            for namespace, values in self._table.items()
            for key, value in values.items()
        )

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Keep a value; Refused when the table would grow beyond its limit."""
        before = self.get(namespace, key)
        if before == value:
            return
        grows_by = _size(namespace, key, value)
        if before is not None:
            grows_by -= _size(namespace, key, before)
        most = self._bytes_max()
        if grows_by > 0 and self.size + grows_by > most:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"key {key[:80]!r} of namespace {namespace[:80]!r} is not kept: the table of "
                f"key-values takes {self.size} bytes, with it {self.size + grows_by}, and "
                f"maxKvConfigBytes is {most}; delete keys or raise the limit",
            )
        self.size += grows_by
        self._table.setdefault(namespace, {})[key] = value
        self.file.changed((_TABLE, namespace, key))

    def delete(self, namespace: str, key: str) -> None:
        values = self._table.get(namespace, {})
        value = values.pop(key, None)
        if value is None:
            return
        self.size -= _size(namespace, key, value)
        self.file.changed((_TABLE, namespace, key))
        if not values:
            del self._table[namespace]

    def namespace(self, namespace: str) -> dict[str, str]:
        return dict(self._table.get(namespace, {}))

    def _entries(self) -> Iterator[Change]:
        if not self._table:
            yield (_TABLE,), {}
        for namespace in list(self._table):
            for key in list(self._table.get(namespace, ())):
                value = self.get(namespace, key)
                if value is not None:
                    yield (_TABLE, namespace, key), value

    def _value_of(self, path: Path) -> Any:
        return self.get(path[1], path[2]) if len(path) == 3 else None  # the file has no version


def _size(namespace: str, key: str, value: str) -> int:
    texts = (namespace, key, value)
    return sum(len(text.encode(errors="replace")) for text in texts) + ENTRY_BYTES
