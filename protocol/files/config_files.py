"""config/*.json of a stopped store, with the changes in the journal of a killed broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aerobee.protocol.files.config_journal import SUFFIX, read_journal, with_journal
from aerobee.protocol.files.config_seal import without_seal
from aerobee.protocol.json import fastjson


def read_config(store: str, name: str) -> dict[Any, Any]:
    """The object in the file; OSError or ValueError when it cannot be read."""
    path = Path(store) / "config" / name
    data = path.read_bytes()
    content = fastjson.loads(data)
    if not isinstance(content, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    journal = path.with_name(name + SUFFIX)
    if journal.is_file():
        with_journal(data, content, read_journal(journal.read_bytes()))
    return without_seal(content)
