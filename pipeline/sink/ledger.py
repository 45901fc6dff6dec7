"""The ledgers of the exactly-once sink, for operators: one in each broker."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.wire import Cluster
from aerobee.protocol.wire.sink_codes import SINK_FORGET, SINK_LIST


@dataclass(frozen=True, slots=True)
class Entry:
    """A query that a broker remembers."""

    address: str
    query: str
    batch: int  # the newest committed one; -1: none yet
    committed_at: datetime | None
    is_committing: bool


def entries(cluster: Cluster) -> list[Entry]:
    """What all brokers remember."""
    found = []
    for address in sorted(cluster.masters().values()):
        answer = cluster.request("listing the ledger", address, SINK_LIST, {})
        for row in json.loads(bytes(answer.body))["queries"]:
            at_ms = row["committedAt"]
            at = None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)
            found.append(Entry(address, row["query"], row["batch"], at, row["committing"]))
    return found


def forget(
    cluster: Cluster, queries: tuple[str, ...], older_than: timedelta | None = None
) -> list[Entry]:
    """Removes the queries, or all whose last commit is older; returns the removed ones."""
    known = entries(cluster)
    if unknown := set(queries) - {entry.query for entry in known}:
        raise OptionError(f"no broker remembers {', '.join(sorted(unknown))}")
    chosen = [entry for entry in known if entry.query in queries or _is_older(entry, older_than)]
    for entry in chosen:
        what = f"forgetting {entry.query}"
        cluster.request(what, entry.address, SINK_FORGET, {"query": entry.query})
    return chosen


def _is_older(entry: Entry, age: timedelta | None) -> bool:
    if age is None or entry.committed_at is None or entry.is_committing:
        return False
    return entry.committed_at < datetime.now(UTC) - age
