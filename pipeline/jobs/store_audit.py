"""`aerobee store verify` cut into parts, so Spark (or any pool) can run them side by side.

The verifier is the broker's own, which knows every file of a store.
"""

import os
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import uuid4

from aerobee.broker.store.inspect.files import RestStore, open_directory
from aerobee.broker.store.inspect.verify import Part, parts_of, verify_part
from aerobee.pipeline.source.store_files import StoreFiles

FINDINGS_MAX: Final = 1000  # per part: a lost file is not reported record by record


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    store: str
    file: str
    position: int  # in the file; -1: the file itself
    problem: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a part held, and what was wrong with it."""

    store: str
    kind: str  # "folder", "log", "queue" or "index"
    path: str
    checked: int
    findings: list[Finding] = field(default_factory=list)


class Task(NamedTuple):
    """A part, and the id of this audit: a worker may have audited the store before."""

    store: str
    audit: str
    part: Part


@lru_cache(maxsize=1)
def _open(store: str, _audit: str) -> RestStore:
    """One listing for all parts that a worker gets."""
    inside = os.path.join(store, "commitlog")
    return open_directory(store, inside if os.path.isdir(inside) else store)


def audit_parts(store: str) -> list[Task]:
    """All parts of the store at rest; StoreError when it is none."""
    newest = StoreFiles(store).newest()
    audit = uuid4().hex
    return [
        Task(store, audit, part)
        for part in parts_of(_open(store, audit))
        if part.kind != "log" or part.path <= newest.path  # the next file is made ahead of need
    ]


def check_part(task: Task) -> Report:
    store, audit, part = task
    found = verify_part(_open(store, audit), part)
    findings = [Finding(store, *problem) for problem in found.problems[:FINDINGS_MAX]]
    checked = found.records + found.queue_entries + found.index_entries
    return Report(store, part.kind, part.path, checked, findings)
