"""What an exactly-once job has planned and sent, so that a run after a kill can do the rest.

The batches are in a file, written before the first of them is sent. Which of them are done is in
the broker's ledger, written in the same step in which their messages appear. A run that finds the
ledger's entry without the file refuses to guess.
"""

import fcntl
import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.jobs.slices import Batch
from aerobee.pipeline.sink.homes import all_homes
from aerobee.pipeline.sink.ledger import entries
from aerobee.pipeline.wire import Cluster

STATE: Final = "aerobee/replays"


def state_folder(given: str | None) -> Path:
    if given:
        return Path(given).expanduser().absolute()
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / STATE


@dataclass
class Plan:
    """The batches of one job, in their order; the query is its name in the ledger."""

    file: Path
    query: str
    job: Mapping[str, Any]
    batches: list[Batch] = field(default_factory=list)

    def save(self) -> None:
        """Before a batch of it is sent."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        aside = self.file.with_suffix(".tmp")
        rows = [batch.as_json() for batch in self.batches]
        with aside.open("w") as file:
            json.dump({"query": self.query, "job": self.job, "batches": rows}, file)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(self.file)

    def done(self, cluster: Cluster) -> int:
        """How many batches are published."""
        return 1 + max(home.state(self.query).batch for home in all_homes(cluster))


def name_of(kind: str, job: Mapping[str, Any]) -> str:
    text = json.dumps(job, sort_keys=True)
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


@contextmanager
def resumed(
    folder: Path, kind: str, job: Mapping[str, Any], cluster: Cluster, *, again: bool
) -> Iterator[Plan]:
    """The plan of a job like this one, or a new one; for one process at a time."""
    name = name_of(kind, job)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            text = f"another process runs the same {kind} (it holds {lock.name})"
            raise OptionError(text) from None
        yield _opened(folder / f"{name}.json", name, job, cluster, again=again)


def _opened(
    file: Path, name: str, job: Mapping[str, Any], cluster: Cluster, *, again: bool
) -> Plan:
    if file.exists() and not again:
        table = json.loads(file.read_text())
        return Plan(file, table["query"], job, [Batch.of_json(one) for one in table["batches"]])
    known = [entry.query for entry in entries(cluster) if entry.query.startswith(f"{name}-")]
    if known and not again:
        raise OptionError(
            f"the broker knows this job as {known[0]}, but its plan is not in {file.parent}: "
            "name the folder with --state, or send everything again with --again"
        )
    return Plan(file, f"{name}-{uuid.uuid4().hex[:12]}", job)
