"""What makes a running broker stop and start again: a promotion, a later master, a log to cut."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import structlog

from aerobee.broker.base.refused import Refused
from aerobee.broker.daemon.replication import Following
from aerobee.broker.daemon.roles import Roles
from aerobee.broker.handlers.context import Broker
from aerobee.broker.settings import Settings
from aerobee.broker.store.refusals import Cause
from aerobee.protocol.wire.codes import ResponseCode

if TYPE_CHECKING:
    from aerobee.broker.daemon.failover import Failover

log = structlog.get_logger("aerobee.app")

ANSWERED_S: Final = 0.05


class RoleChange:
    def __init__(
        self,
        settings: Settings,
        roles: Roles,
        restart: Callable[[int | None], Awaitable[bool]],
    ) -> None:
        """`restart` is given the offset to cut the log at, None: unchanged."""
        self._settings = settings
        self._roles = roles
        self._restart = restart
        self._task: asyncio.Task[None] | None = None
        self._broker: Broker | None = None
        self.following: Following | None = None  # of a slave that runs
        self.failover: Failover | None = None  # with an arbiter

    def of(self, broker: Broker) -> None:
        """The broker is built again, for its next start."""
        self._broker, self.following = broker, None

    def promote(self, role: str, *, force: bool, accept_loss: bool = False) -> int:
        """Make this slave the master; returns its epoch. Clients lose their connections for a
        moment. Refused says why not."""
        if self.failover is not None:
            return self.failover.promote(accept_loss=accept_loss)
        following = self.following
        if following is not None and following.follows and not force:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"this slave follows {following.master_text}, which is up: stop it first; two "
                f"masters would accept messages, and those of one of them would be lost",
            )
        master_role = following.master_role if following is not None else ""
        epoch = self._roles.promote(role or master_role or "ASYNC_MASTER")
        self._start_again(f"it is promoted, and will be the master of epoch {epoch}")
        return epoch

    def superseded(self, epoch: int, who: str) -> None:
        """Another broker of our name became the master after us: accept no more messages. If our
        settings say that we are a slave, become one again."""
        if self._settings.is_slave or epoch <= self._roles.epoch or self._broker is None:
            return
        if self.failover is not None:  # an arbiter knows better than a name server
            return
        self._broker.store.refusals.set(
            Cause.SUPERSEDED,
            f"another broker is the master in epoch {epoch}, this one was in epoch "
            f"{self._roles.epoch} ({who}): start it with brokerRole=SLAVE and a brokerId of its "
            f"own",
        )
        if self._roles.demote(epoch):
            self._start_again(f"another broker is the master, in epoch {epoch}")

    def cut_log(self, end: int) -> None:
        self._start_again("its log has to be cut before it can follow its master", end)

    def _start_again(self, reason: str, cut_to: int | None = None) -> None:
        if self._task is None or self._task.done():
            log.info("this broker stops and starts again", reason=reason)
            self._task = asyncio.create_task(self._change(cut_to), name="change of role")

    async def _change(self, cut_to: int | None) -> None:
        await asyncio.sleep(ANSWERED_S)  # for the answer to the request
        await self._restart(cut_to)
