"""The console's requests by name; changes are listed apart, and refused unless allowed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from aerobee.client.console.view import Params, View
from aerobee.client.console.views import (
    cluster,
    dead,
    groups,
    life,
    messages,
    overview,
    resets,
    store,
    topics,
    waiting,
)

Answering = Callable[[View, Params], Awaitable[Any]]

READS: Final[dict[str, Answering]] = {
    "overview": overview.overview,
    "health": overview.health,
    "topics": topics.listed,
    "topic": topics.one,
    "messages": messages.find,
    "tail": messages.tail,
    "export": messages.export,
    "message": life.one,
    "groups": groups.listed,
    "group": groups.one,
    "reset-preview": resets.preview,
    "dead": dead.listed,
    "letters": dead.one,
    "replay-preview": dead.preview,
    "letters-export": dead.export,
    "job": dead.job,
    "waiting": waiting.waiting,
    "transactions": waiting.transactions,
    "clients": cluster.clients,
    "settings": cluster.settings,
    "store": store.store,
    "cluster": cluster.cluster,
    "search": cluster.search,
}
# Polled by a page, and the same for all users with the same rights: answers are shared.
SHARED: Final = frozenset(
    ("health", "topics", "topic", "groups", "group", "dead", "waiting", "transactions")
) | {"clients", "settings", "store", "cluster"}
WRITES: Final[dict[str, Answering]] = {
    "send": life.send,
    "resend": life.resend,
    "reset": resets.reset,
    "pause": resets.pause,
    "replay": dead.replay,
    "stop-job": dead.stop_job,
    "recall": waiting.recall,
}
