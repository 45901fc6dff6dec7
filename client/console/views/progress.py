"""The progress of every group: one request to each broker, shared by all pages."""

from __future__ import annotations

from aerobee.client.admin.details import Progress
from aerobee.client.console.view import View, gather
from aerobee.protocol.names import is_system_group


async def all_progress(view: View) -> dict[str, list[Progress]]:
    """The queues of every group that has offsets, or is only known, on all masters."""

    async def ask() -> dict[str, list[Progress]]:
        found: dict[str, list[Progress]] = {}
        masters = await view.masters()
        answers = await gather(view.admin.details.all_progress(row.address) for row in masters)
        for answer in answers:
            for group, rows in answer.items():
                if not is_system_group(group):
                    found.setdefault(group, []).extend(rows)
        return found

    kept: dict[str, list[Progress]] = await view.shared.get("progress", 1.5, ask)
    return kept
