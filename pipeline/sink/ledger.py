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
    home: str | None  # the broker that commits its batches


def entries(cluster: Cluster) -> list[Entry]:
    """What all brokers remember."""
    found = []
    for address in sorted(cluster.masters().values()):
        answer = cluster.request("listing the ledger", address, SINK_LIST, {})
        for row in json.loads(bytes(answer.body))["queries"]:
            at_ms = row["committedAt"]
            at = None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)
            home = row["home"]["home"] if "home" in row else None
            found.append(Entry(address, row["query"], row["batch"], at, row["committing"], home))
    return found


def forget(
    cluster: Cluster, queries: tuple[str, ...], older_than: timedelta | None = None
) -> list[Entry]:
    """Removes the queries, or all whose last commit is older, from every ledger; returns what was
    removed."""
    known: dict[str, list[Entry]] = {}
    for entry in entries(cluster):
        known.setdefault(entry.query, []).append(entry)
    if unknown := set(queries) - known.keys():
        raise OptionError(f"no broker remembers {', '.join(sorted(unknown))}")
    chosen = [
        entry
        for query, found in known.items()
        if query in queries or _is_older(found, older_than)
        for entry in found
    ]
    for entry in chosen:
        what = f"forgetting {entry.query}"
        cluster.request(what, entry.address, SINK_FORGET, {"query": entry.query})
    return chosen


def _is_older(found: list[Entry], age: timedelta | None) -> bool:
    times = [entry.committed_at for entry in found if entry.committed_at is not None]
    if age is None or not times or any(entry.is_committing for entry in found):
        return False
    return max(times) < datetime.now(UTC) - age
