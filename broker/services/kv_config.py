"""The name service's key-value table, by namespace; kvConfig.json in Apache's shape."""

from typing import Any, Final

from aerobee.broker.clock import Clock
from aerobee.broker.services.config_file import ConfigFile

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"  # topic -> "broker-a:4;broker-b:4"


class KvConfig:
    """Small texts that clients and administrators leave with the name service."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._table: dict[str, dict[str, str]] = {}
        self.file = ConfigFile(path, clock, self._snapshot)

    def load(self) -> None:
        table = (self.file.load() or {}).get("configTable")
        for namespace, values in (table if isinstance(table, dict) else {}).items():
            if isinstance(values, dict):
                texts = {str(key): str(value) for key, value in values.items()}
                self._table[str(namespace)] = texts

    async def run(self) -> None:
        """Save what was put off, until cancelled."""
        await self.file.run()

    def stop(self) -> None:
        self.file.save_if_changed()

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def put(self, namespace: str, key: str, value: str) -> None:
        self._table.setdefault(namespace, {})[key] = value
        self.file.changed()

    def delete(self, namespace: str, key: str) -> None:
        if self._table.get(namespace, {}).pop(key, None) is not None:
            self.file.changed()

    def namespace(self, namespace: str) -> dict[str, str]:
        return dict(self._table.get(namespace, {}))

    def _snapshot(self) -> dict[Any, Any]:
        return {"configTable": {name: dict(values) for name, values in self._table.items()}}
