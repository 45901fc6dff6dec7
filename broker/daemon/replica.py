"""This broker as failover sees it."""

from typing import Protocol

from aerobee.broker.ha.arbiter import Alive
from aerobee.broker.ha.in_sync import InSync
from aerobee.broker.store.refusals import Refusals


class NotStartedAgain(Exception):
    """This broker was to start in another role, and has not; its log says why."""


class Replica(Protocol):
    broker_id: int
    leads: int  # the epoch in which it takes messages; 0: it does not
    in_sync: InSync | None  # of a master

    @property
    def refusals(self) -> Refusals: ...
    @property
    def is_up(self) -> bool: ...  # False: it has not started again in its new role
    def announcement(self) -> Alive: ...
    async def follow(self, master: Alive, epoch: int) -> None: ...
    async def stand(self) -> None: ...
    async def mark_electable(self) -> None: ...
    async def become_master(self, epoch: int) -> None: ...
    async def become_slave(self) -> None: ...
