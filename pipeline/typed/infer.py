"""A JSON schema from a sample of values: what they have in common, for a person to confirm."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec

_NAMES: Final = {bool: "boolean", int: "integer", float: "number", str: "string"}


@dataclass
class Seen:
    """What was found at one place of the values."""

    kinds: Counter[str] = field(default_factory=Counter)
    times: int = 0  # texts that are times
    members: dict[str, "Seen"] = field(default_factory=dict)
    items: "Seen | None" = None

    def add(self, value: Any) -> None:
        if value is None:
            self.kinds["null"] += 1
        elif isinstance(value, dict):
            self.kinds["object"] += 1
            for name, inner in value.items():
                self.members.setdefault(name, Seen()).add(inner)
        elif isinstance(value, list):
            self.kinds["array"] += 1
            self.items = self.items or Seen()
            for inner in value:
                self.items.add(inner)
        else:
            self.kinds[_NAMES[type(value)]] += 1
            self.times += isinstance(value, str) and _is_time(value)

    def schema(self) -> dict[str, Any]:
        kinds = sorted(kind for kind in self.kinds if kind != "null")
        if kinds == ["integer", "number"]:
            kinds = ["number"]
        if len(kinds) != 1:
            return {}  # nothing in common: kept as JSON text
        kind: Any = [kinds[0], "null"] if self.kinds["null"] else kinds[0]
        schema: dict[str, Any] = {"type": kind}
        if kinds[0] == "string" and self.times == self.kinds["string"]:
            schema["format"] = "date-time"
        elif kinds[0] == "array":
            schema["items"] = self.items.schema() if self.items else {}
        elif kinds[0] == "object":
            parts = self.members.items()
            schema["properties"] = {name: inner.schema() for name, inner in parts}
            count = self.kinds["object"]
            always = [name for name, inner in parts if sum(inner.kinds.values()) == count]
            if always:
                schema["required"] = always
        return schema


def _is_time(text: str) -> bool:
    """Whether it is one for those who decode values by the schema."""
    try:
        return msgspec.convert(text, datetime).tzinfo is not None
    except ValueError:
        return False


def infer(values: Iterable[bytes]) -> tuple[dict[str, Any], int, int]:
    """The schema, how many values it is of, and how many were not JSON objects."""
    seen, count, others = Seen(), 0, 0
    for value in values:
        try:
            row = json.loads(value)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            seen.add(row)
            count += 1
        else:
            others += 1
    return seen.schema() if count else {}, count, others
