"""The store: its files on a time line, what is removed when, and when space ends."""

from __future__ import annotations

import itertools
import re
from typing import Any, Final

from aerobee.client.admin.types import Broker
from aerobee.client.console.view import Params, View, attempt, gather, now_ms
from aerobee.client.errors import AerobeeError

SEGMENTS_ASKED: Final = 60  # times of log files to fetch; of more files an even sample
HOUR_MS: Final = 3_600_000
_UNITS: Final = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_SIZE: Final = re.compile(r"([\d.]+)\s*([KMGTP]?)i?B?", re.I)


async def store(view: View, _params: Params) -> dict[str, Any]:
    """Every broker's files and when they expire."""
    return {"brokers": await gather(_one(view, row) for row in await view.brokers())}


async def _one(view: View, broker: Broker) -> dict[str, Any]:
    found: dict[str, Any] = {"name": broker.name, "number": broker.number}
    try:
        state = await view.runtime(broker.address)
    except AerobeeError as error:
        return found | {"error": str(error)}
    settings = await attempt(view.settings(broker.address), {})
    low, end = _int(state.get("commitLogMinOffset")), _int(state.get("commitLogMaxOffset"))
    reserved_h = _int(settings.get("fileReservedTime"), 72)
    segments = await _segments(view, broker.address, low, end, _segment_size(settings))
    for row in segments:
        last = row["until"]
        row["expires"] = None if last is None else last + reserved_h * HOUR_MS
    return found | {
        "min": low,
        "max": end,
        "segment_size": _segment_size(settings),
        "segments": segments,
        "earliest": _int(state.get("earliestMessageTimeStamp"), -1),
        "disk": _float(state.get("commitLogDiskRatio")),
        "free": free_bytes(state),
        "growth": growth(view, broker.address, state),
        "ends": space_ends_ms(view, broker.address, state, settings),
        "reserved_hours": reserved_h,
        "delete_when": settings.get("deleteWhen", "04"),
        "flush_behind": size_of(state.get("remainHowManyDataToFlush")),
        "dispatch_behind": _int(state.get("dispatchBehindBytes")),
        "flush": settings.get("flushDiskType", ""),
        "now": now_ms(),
    }


def _segment_size(settings: dict[str, str]) -> int:
    given = settings.get("mappedFileSizeCommitLog") or settings.get("mapedFileSizeCommitLog")
    return max(1, _int(given, 1 << 30))


async def _segments(
    view: View, address: str, low: int, end: int, size: int
) -> list[dict[str, Any]]:
    """The files of the log; each begins with a record, whose time is the file's."""
    if end <= low:
        return []
    starts = [low, *range((low // size + 1) * size, end, size)]
    step = -(-len(starts) // SEGMENTS_ASKED)
    asked = starts[::step]
    times = await gather(_time_at(view, address, start) for start in asked)
    known = dict(zip(asked, times, strict=True))
    rows = [
        {
            "file": f"{start // size * size:020d}",
            "start": start,
            "bytes": min((start // size + 1) * size, end) - start,
            "since": known.get(start),
        }
        for start in starts
    ]
    for row, following in itertools.pairwise(rows):
        row["until"] = following["since"]
    rows[-1]["until"] = now_ms()
    return rows


async def _time_at(view: View, address: str, offset: int) -> int | None:
    """A record never changes, so its time is requested once."""

    async def ask() -> int | None:
        return await view.admin.details.stored_at_ms(address, offset)

    found: int | None = await view.shared.get(("record", address, offset), 600.0, ask)
    return found


def growth(view: View, address: str, state: dict[str, str]) -> float | None:
    """Bytes a second: from the last samples, else since the oldest message."""
    end = _int(state.get("commitLogMaxOffset"))
    seen = view.history.rate(("log", address), end)
    first = _int(state.get("earliestMessageTimeStamp"), -1)
    low = _int(state.get("commitLogMinOffset"))
    if first <= 0 or end <= low:
        return seen
    elapsed = max(1, now_ms() - first) / 1000
    return max(seen or 0.0, (end - low) / elapsed) if elapsed > 60 else seen


def space_ends_ms(
    view: View, address: str, state: dict[str, str], settings: dict[str, str]
) -> int | None:
    """In how many ms the disk reaches the ratio at which files go early; None: not in sight."""
    free, used = free_bytes(state), _float(state.get("commitLogDiskRatio"))
    speed = growth(view, address, state)
    if free is None or used is None or used >= 1 or not speed:
        return None
    total = free / (1 - used)
    limit = _int(settings.get("diskMaxUsedSpaceRatio"), 75) / 100
    left = total * limit - total * used
    if left <= 0:
        return 0
    found = round(left / speed * 1000)
    kept = _int(settings.get("fileReservedTime"), 72) * HOUR_MS
    return found if found < kept else None  # older files are gone by then


def free_bytes(state: dict[str, str]) -> int | None:
    text = state.get("commitLogDirCapacity", "").rpartition("Free")[2]
    return size_of(text)


def size_of(text: str | None) -> int | None:
    """12.5 GiB as bytes; RocketMQ writes it in several ways."""
    found = _SIZE.search(text or "")
    if found is None:
        return None
    return round(float(found[1]) * _UNITS[(found[2] or "B").upper()])


def _int(text: str | None, default: int = 0) -> int:
    try:
        return int(text) if text else default
    except ValueError:
        return default


def _float(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
