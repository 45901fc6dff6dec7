"""What handlers use of replication. The daemon fills it in; a broker without has these defaults."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


def _no_slaves() -> list[dict[str, Any]]:
    return []


def _no_master() -> dict[str, Any]:
    return {}


def _ignored(_endpoint: tuple[str, int], _broker_id: int) -> None:
    """There is no link that could be identified."""


def _no_epochs() -> list[tuple[tuple[int, int], int]]:
    return []


def _never(role: str, *, force: bool, accept_loss: bool) -> int:
    raise NotImplementedError(role, force, accept_loss)


def _not_ours() -> None:
    """Does nothing: there is no controller."""


class Promote(Protocol):
    def __call__(self, role: str, *, force: bool, accept_loss: bool) -> int: ...


@dataclass(slots=True)
class Replication:
    slaves: Callable[[], list[dict[str, Any]]] = _no_slaves  # each one's connection
    master: Callable[[], dict[str, Any]] = _no_master  # of a slave: how it follows
    access: Callable[[], dict[str, Any]] = _no_master  # of a slave: whether its users are copied
    identify: Callable[[tuple[str, int], int], None] = _ignored  # a slave's endpoint, its brokerId
    epochs: Callable[[], Sequence[tuple[tuple[int, int], int]]] = _no_epochs  # number, start; end
    promote: Promote = _never  # let a slave be the master; the new epoch
    failover: Callable[[], dict[str, Any]] = _no_master  # with an arbiter: what it says
    role_changed: Callable[[], None] = _not_ours  # a controller has elected a master
    is_settled: bool = True  # False: a failover may take back what could be pulled here
