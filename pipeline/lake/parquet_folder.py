"""A table of plain Parquet files in a folder, with commits of its own beside them.

    table/date=2026-01-31/part-<uuid>.parquet   what everybody reads
    table/_aerobee/commits/00000012.json        files added and removed, and the offsets held
    table/_aerobee/aside/...parquet.aside       written by tasks, in no commit yet
    table/_aerobee/removed/...parquet.removed   replaced by a larger file, kept for slow readers

A commit is a file that is made under another name and linked to its number, which only one can do.
After it the files are moved to their places; after a kill in between the next `refresh`
of a writer completes them, for the moves can be repeated.
"""

import base64
import json
import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from aerobee.pipeline.lake.data_files import sync
from aerobee.pipeline.lake.model import (
    ASIDE,
    OWN,
    REMOVED,
    Cleaned,
    DataFile,
    Held,
    TableConflict,
    TableError,
)

WHOLE_EVERY: Final = 50  # each such commit lists all files, so that older ones need not be read


class ParquetFolder:
    """See the module. `writing`: finish what a killed writer left half done."""

    table_format = "parquet"

    def __init__(self, where: str, *, writing: bool = False) -> None:
        self.where = where
        self._writing = writing
        self._own = Path(where) / OWN
        self.refresh()

    @classmethod
    def create(cls, where: str, schema: Any, partition_by: Sequence[str]) -> "ParquetFolder":
        for name in ("commits", "aside", "removed"):
            (Path(where) / OWN / name).mkdir(parents=True, exist_ok=True)
        first = {"held": asdict(Held()), "all": [], "partition_by": list(partition_by)}
        _link(Path(where) / OWN / "commits", 0, first | {"schema": _packed(schema)})
        return cls(where, writing=True)

    def refresh(self) -> None:
        commits = self._commits()
        if not commits:
            raise TableError(f"{self.where} is not a table: it has no {OWN}/commits")
        self._version = max(commits)
        self._last = self._read(self._version)
        if self._writing:
            self._apply(self._last)
        later, at, whole = [], self._version, self._last
        while "all" not in whole:
            later.append(whole)
            at -= 1
            whole = self._read(at)
        files = {one["path"]: one for one in whole["all"]}
        for commit in reversed(later):
            for path in commit["remove"]:
                del files[path]
            files |= {one["path"]: one for one in commit["add"]}
        self._files = files
        self.partition_by = tuple(self._last["partition_by"])

    def schema(self) -> Any:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self._last["schema"])))

    def file_schema(self) -> Any:
        """Partition values are in the folders' names, as Hive, Spark and DuckDB have it."""
        fields = [one for one in self.schema() if one.name not in self.partition_by]
        return pa.schema(fields)

    def held(self, queues: Iterable[tuple[str, str]]) -> Held:
        return Held(**self._last["held"])

    def files(self) -> list[DataFile]:
        return [
            DataFile(**one | {"path": str(Path(self.where) / path)})
            for path, one in self._files.items()
        ]

    def data_folder(self) -> str:
        return str(self._own / "aside")

    def append(self, files: Sequence[DataFile], held: Held, note: Mapping[str, Any]) -> None:
        self._commit(files, [], held, note)

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile], held: Held) -> None:
        self._commit(new, [str(Path(one.path).relative_to(self.where)) for one in old], held, {})

    def add_columns(self, fields: Sequence[Any]) -> None:
        schema = self.schema()
        for one in fields:
            at = schema.get_field_index(one.name)
            schema = schema.append(one) if at < 0 else schema.set(at, one)
        self._last = self._last | {"schema": _packed(schema)}
        self._commit([], [], Held(**self._last["held"]), {})

    def _commit(
        self, files: Sequence[DataFile], removed: list[str], held: Held, note: Mapping[str, Any]
    ) -> None:
        added = [asdict(one) | {"path": self._place(one)} for one in files]
        version = self._version + 1
        commit: dict[str, Any] = {
            "version": version,
            "at": round(time.time() * 1000),
            "held": asdict(held),
            "note": dict(note),
            "add": added,
            "remove": removed,
            "partition_by": list(self.partition_by),
            "schema": self._last["schema"],
        }
        after = {path: one for path, one in self._files.items() if path not in set(removed)}
        after |= {one["path"]: one for one in added}
        if version % WHOLE_EVERY == 0:
            commit["all"] = list(after.values())
        _link(self._own / "commits", version, commit)
        self._apply(commit)
        self._version, self._last, self._files = version, commit, after

    def _place(self, one: DataFile) -> str:
        return str(Path(one.path).relative_to(self.data_folder())).removesuffix(ASIDE)

    def _apply(self, commit: Mapping[str, Any]) -> None:
        """Moves the commit's files to their places. Replaced files go first, so that no reader of
        the folder sees a row twice."""
        for path in commit.get("remove", ()):
            away = self._own / "removed" / f"{Path(path).name}{REMOVED}"
            _move(Path(self.where) / path, away)
            with suppress(FileNotFoundError):
                os.utime(away)  # `keep` counts from here
        for one in commit.get("add", ()):
            aside = Path(self.data_folder()) / f"{one['path']}{ASIDE}"
            _move(aside, Path(self.where) / one["path"])
            if not (Path(self.where) / one["path"]).exists():
                raise TableError(f"{one['path']} of {self.where} is gone: its newest commit has it")

    def clean(self, keep: timedelta) -> Cleaned:
        before = time.time() - keep.total_seconds()
        wholes = [at for at in self._commits() if at % WHOLE_EVERY == 0]
        old = [at for at in self._commits() if at < max(wholes)]
        removed = [
            *(self._own / "commits" / f"{at:08}.json" for at in old),
            *(file for file in (self._own / "aside").rglob(f"*{ASIDE}")),
            *(self._own / "removed").iterdir(),
            *(self._own / "commits").glob("*.tmp"),
        ]
        removed = [file for file in removed if file.stat().st_mtime < before]
        for file in removed:
            file.unlink(missing_ok=True)
        commits = sum(file.suffix == ".json" for file in removed)
        return Cleaned(commits, len(removed) - commits)

    def _commits(self) -> list[int]:
        return [int(file.stem) for file in (self._own / "commits").glob("*.json")]

    def _read(self, version: int) -> dict[str, Any]:
        commit: dict[str, Any] = json.loads(
            (self._own / "commits" / f"{version:08}.json").read_text()
        )
        return commit


def _link(folder: Path, version: int, commit: Mapping[str, Any]) -> None:
    aside = folder / f"{uuid.uuid4()}.tmp"
    with aside.open("w") as file:
        json.dump(commit, file)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(aside, folder / f"{version:08}.json")
    except FileExistsError:
        raise TableConflict(
            f"commit {version} of {folder.parents[1]} was made by another"
        ) from None
    finally:
        aside.unlink()
    sync(str(folder))


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):  # moved already, before a kill
        source.rename(target)


def _packed(schema: Any) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()
