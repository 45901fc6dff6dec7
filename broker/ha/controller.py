"""The arbiter on RocketMQ 5's own controller, beside Java brokers.

The controller elects a member of the in-sync set that sends heartbeats, and numbers the epochs. So:

    the record    its data for our name; `holder` is us if it has elected this process
    revision      its two counters, of masters and of sets
    announce      heartbeats. A replica that may lack something sends none, and is not elected
    withdraw      the end of the connection that they came on
    set           an election that we ask for, or a change of the in-sync set by its master

An election that we must not accept is refused by stopping our heartbeats: it elects another, or
none. We refuse if it means an earlier process of ours, if we may lack acknowledged messages, and if
our log already has an epoch of this number.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from aerobee.broker.ha.arbiter import Alive, ArbiterError, Record, View
from aerobee.broker.ha.controller_client import ControllerClient
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire import controller_codes as controller
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command

log = structlog.get_logger("aerobee.ha")

NOBODY: Final = 0  # no broker, as a record's master
AT_ONCE_MS: Final = 1  # a heartbeat that expires at once
APPLIED_S: Final = 0.05  # a change may be visible only some time after its answer ...
APPLIED_TRIES: Final = 20
AGAIN_S: Final = 0.25  # pause after a refusal


@dataclass(frozen=True, slots=True)
class SetMember:
    """Our identity in requests to the controller."""

    cluster: str
    name: str
    broker_id: int
    life: str
    log_end: Callable[[], int]
    priority: int = 2**31 - 1  # of elections: the smallest wins among equals

    @property
    def fields(self) -> dict[str, Any]:
        return {"clusterName": self.cluster, "brokerName": self.name, "brokerId": self.broker_id}


class ControllerArbiter:
    """One broker's name at the controller, as one replica sees and changes it."""

    name = "the controller"

    def __init__(
        self, us: SetMember, records: ControllerClient, beats: ControllerClient, lease_ms: int
    ) -> None:
        """`beats`: the connection for heartbeats; closing it withdraws us."""
        self._us = us
        self._records = records
        self._beats = beats
        self._lease_ms = lease_ms
        self._own: Alive | None = None
        self._registered = ""  # our address, as the controller knows it
        self._view = View()
        self._floor = 0  # the newest revision that we know of
        self._born: int | None = None  # the epoch when this life began
        self._taken = 0  # the epoch in which we lead
        self._is_refusing = False  # an election
        self._change = asyncio.Event()

    @property
    def local(self) -> tuple[str, int]:
        """Our address, as a machine that is reached from it may know us."""
        return self._records.local

    # -- the arbiter's interface

    async def read(self) -> View:
        for _ in range(APPLIED_TRIES):
            view = await self._read_record()
            if view.revision >= self._floor:
                break
            await asyncio.sleep(APPLIED_S)
        else:
            raise ArbiterError(
                f"the controller reports {_named(view.revision)}, and has reported "
                f"{_named(self._floor)} before: its data is lost, or an older one leads"
            )
        self._floor = view.revision
        if self._born is None:
            self._born = view.record.epoch if view.record is not None else 0
        self._view = view = await self._judged(view)
        return view

    async def _read_record(self) -> View:
        """The controller's record, without a holder."""
        wanted = fastjson.dumps([self._us.name])
        answer = await self._records.ask(controller.GET_SYNC_STATE_DATA, {}, wanted)
        try:
            table = fastjson.loads(answer.body)["replicasInfoTable"]
            found = table.get(self._us.name)
            return View() if found is None else self._view_of(found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArbiterError(
                f"the controller's answer cannot be understood: {error!r}: {answer.body[:200]!r}"
            ) from None

    def _view_of(self, found: dict[str, Any]) -> View:
        epoch, master = int(found["masterEpoch"]), int(found.get("masterBrokerId") or NOBODY)
        in_sync = found.get("inSyncReplicas") or []
        alive: dict[int, Alive] = {}
        for row in (*in_sync, *(found.get("notInSyncReplicas") or [])):
            number = int(row["brokerId"])
            if row.get("alive") and number != self._us.broker_id:
                leads = epoch if number == master else 0
                alive[number] = Alive(number, str(row["brokerAddress"]), log_end=-1, leads=leads)
        if self._own is not None:
            alive[self._us.broker_id] = self._own
        members = frozenset(int(row["brokerId"]) for row in in_sync)
        record = Record(epoch, master, members, "") if epoch else None
        return View(record, _revision(epoch, int(found["syncStateSetEpoch"])), alive)

    async def _judged(self, view: View) -> View:
        """With us as the holder, if we may accept this election."""
        record, own = view.record, self._own
        if record is None or record.master != self._us.broker_id:
            self._is_refusing = False
            return view
        assert self._born is not None
        if record.epoch != self._taken:
            if record.epoch <= self._born:
                return await self._refuse(view, "it means an earlier process of this broker")
            if own is None or not own.electable:
                return await self._refuse(view, "this replica may lack acknowledged messages")
            if record.epoch <= own.last_epoch:
                return await self._refuse(view, f"our log has epoch {own.last_epoch} already")
            self._taken = record.epoch
        self._is_refusing = False
        held = Record(record.epoch, record.master, record.in_sync, self._us.life)
        return View(held, view.revision, view.alive)

    async def compare_and_set(self, revision: int, record: Record) -> int | None:
        known = self._view.record
        if known is None or record.epoch > known.epoch:
            return await self._elect()
        if record.in_sync == known.in_sync:
            # The outcome of an earlier change is unknown, and the controller does not change
            # a set to itself: only another epoch ends that.
            await self._refuse(self._view, "a change of the in-sync set had no answer")
            return None
        return await self._alter(revision, record)

    async def _elect(self) -> int | None:
        """Ask for an election; another replica may win it."""
        if self._own is not None:
            self._own = replace(self._own, electable=True)  # only then is an election requested
        await self._beat()
        fields = {
            "designateElect": "true" if self._view.is_led else "false",
            "invokeTime": _now_ms(),
        }
        answer = await self._records.ask(controller.ELECT_MASTER, self._us.fields | fields)
        if answer.code != ResponseCode.SUCCESS:
            if answer.code != controller.MASTER_STILL_EXISTS:
                log.warning("the controller has not elected us", reason=answer.remark)
            await asyncio.sleep(AGAIN_S)
            return None
        with_us = int(answer.ext.get("masterBrokerId", NOBODY)) == self._us.broker_id
        return self._changed(answer, "masterEpoch", "syncStateSetEpoch") if with_us else None

    async def _alter(self, revision: int, record: Record) -> int | None:
        fields = {
            "brokerName": self._us.name,
            "masterBrokerId": self._us.broker_id,
            "masterEpoch": record.epoch,
            "invokeTime": _now_ms(),
        }
        wanted = {"syncStateSet": sorted(record.in_sync), "syncStateSetEpoch": revision & _LOW}
        answer = await self._records.ask(
            controller.ALTER_SYNC_STATE_SET, fields, fastjson.dumps(wanted)
        )
        if answer.code != ResponseCode.SUCCESS:
            log.info("the in-sync set is not changed", reason=answer.remark)
            await asyncio.sleep(AGAIN_S)
            return None
        answer.ext.setdefault("masterEpoch", str(record.epoch))
        return self._changed(answer, "masterEpoch", "newSyncStateSetEpoch")

    def _changed(self, answer: Command, epoch: str, set_epoch: str) -> int:
        try:
            self._floor = _revision(int(answer.ext[epoch]), int(answer.ext[set_epoch]))
        except (KeyError, ValueError) as error:
            raise ArbiterError(f"the controller's answer has no {error}") from None
        return self._floor

    async def announce(self, alive: Alive) -> None:
        self._own = alive
        await self._register(alive.address)
        await self._beat()

    async def renew(self) -> bool:
        if self._own is not None:
            await self._register(self._own.address)
        await self._beat()
        return True

    async def withdraw(self) -> None:
        self._beats.close()

    async def changed(self) -> None:
        await self._change.wait()
        self._change.clear()

    def notified(self) -> None:
        """The controller announces an election. The request is not authenticated: check it."""
        self._change.set()

    async def close(self) -> None:
        self._records.close()
        self._beats.close()

    # -- registration and heartbeats

    async def _register(self, address: str) -> None:
        """Register our address, once; and our id, if the controller has lost it."""
        if address == self._registered:
            return
        fields = self._us.fields | {"brokerAddress": address, "invokeTime": _now_ms()}
        answer = await self._records.ask(controller.REGISTER_BROKER, fields)
        if answer.code == controller.NEED_TO_BE_REGISTERED:
            log.warning("the controller does not know this broker", reason=answer.remark)
            await apply_for(self._records, self._us, f"{address};{_now_ms()}")
            answer = await self._records.ask(controller.REGISTER_BROKER, fields)
        if answer.code != ResponseCode.SUCCESS:
            raise ArbiterError(f"the controller does not register this broker: {answer.remark}")
        self._registered = address

    async def _beat(self, lease_ms: int = 0) -> None:
        """A heartbeat, unless we must not be elected: then a request to see that it answers."""
        own, us = self._own, self._us
        if self._records.leader and self._beats.leader != self._records.leader:
            self._beats.close()  # a controller that does not lead accepts heartbeats as well
        if own is None or not (lease_ms or self._may_be_elected(own)):
            await self._beats.ask(controller.GET_METADATA_INFO, {})
            return
        fields = {
            "brokerAddr": own.address,
            "epoch": own.last_epoch,
            "maxOffset": us.log_end(),
            "heartbeatTimeoutMills": lease_ms or self._lease_ms,
            "electionPriority": us.priority,
        }
        await self._beats.ask(RequestCode.BROKER_HEARTBEAT, us.fields | fields)

    def _may_be_elected(self, own: Alive) -> bool:
        return own.electable and self._born is not None and not self._is_refusing

    async def _refuse(self, view: View, reason: str) -> View:
        """Make the controller elect again by ending our heartbeats. A last one, which expires at
        once, comes first, so that the controller attributes the end of the connection to us."""
        if not self._is_refusing:
            log.warning("this broker refuses its election", reason=reason)
        self._is_refusing = True
        self._taken = 0
        await self._beat(AT_ONCE_MS)
        self._beats.close()
        return view


async def apply_for(client: ControllerClient, us: SetMember, code: str) -> None:
    """Register this brokerId as ours; ArbiterError when another broker has it."""
    wanted = {"clusterName": us.cluster, "brokerName": us.name}
    fields = wanted | {"appliedBrokerId": us.broker_id, "registerCheckCode": code}
    answer = await client.ask(controller.APPLY_BROKER_ID, fields)
    if answer.code != ResponseCode.SUCCESS:
        raise ArbiterError(f"the controller does not give us id {us.broker_id}: {answer.remark}")


_LOW: Final = (1 << 32) - 1


def _revision(epoch: int, set_epoch: int) -> int:
    return epoch << 32 | set_epoch if epoch else 0


def _named(revision: int) -> str:
    return f"epoch {revision >> 32} with set {revision & _LOW}"


def _now_ms() -> int:
    return round(time.time() * 1000)
