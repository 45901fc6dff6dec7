"""What a replica does next, given the arbiter's view: a decision table, without I/O.

    record               we                                              step
    -------------------  ----------------------------------------------  ----------------------
    held by our life     any                                             Lead
    none                 lead, in the newest epoch that anybody leads    Elect
    none                 may begin, the greatest that may, a while ago,  Elect
                         and nobody leads
    none                 else                                            Wait
    its master is there  any                                             FollowMaster
    its master is gone   not in its in-sync set, or not electable        Wait
    its master is gone   follow a master                                 Stand: stop following
    its master is gone   stand, the greatest of those who do, and all    Elect
                         members stand or had a while for it
    its master is gone   else                                            Wait
    any                  an operator promotes us, and we follow          Stand
    any                  an operator promotes us, and we stand           Elect

An operator's promotion ignores which replicas are alive. It promotes a replica that may lack
messages only if the operator accepts the loss.

The elected replica was in the recorded set and stopped following before: it has all that any
master could have acknowledged until then, and no master gets an acknowledgement from it since. So
safety does not depend on whether a "gone" master is alive, nor on which member is elected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aerobee.broker.ha.arbiter import Alive, Record, View

PATIENCE_S: Final = 1.0  # wait for members that are not candidates yet
BEGIN_S: Final = 2.0  # wait for replicas that may have more, before the first record


@dataclass(frozen=True, slots=True)
class FollowMaster:
    """This master, in this epoch."""

    master: Alive
    epoch: int


@dataclass(frozen=True, slots=True)
class Lead:
    record: Record


@dataclass(frozen=True, slots=True)
class Stand:
    """Become a candidate: stop following, and announce where our log ends."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Elect:
    """Write this record if the revision is unchanged."""

    record: Record
    revision: int


@dataclass(frozen=True, slots=True)
class Wait:
    reason: str


Step = FollowMaster | Lead | Stand | Elect | Wait


class Voter:
    """The state of one replica's process in elections."""

    def __init__(self, broker_id: int, life: str) -> None:
        self._id = broker_id
        self._life = life
        self._waiting: tuple[int, float] | None = None  # (revision waited for, since when)

    def decide(
        self, view: View, own: Alive, now: float, *, asked: bool = False, accept_loss: bool = False
    ) -> Step:
        """`own`: our present announcement. `asked`: an operator promotes us; `accept_loss`: even if
        we lack acknowledged messages."""
        record = view.record
        why_not = "" if asked and accept_loss else self.why_not(view, own)
        asked = asked and not why_not
        if record is not None and record.holder == self._life:
            self._waiting = None
            return Lead(record)
        if record is not None and view.is_led and record.master != self._id and not asked:
            self._waiting = None
            return FollowMaster(view.alive[record.master], record.epoch)
        if record is None and not asked:
            return self._begin(view, own, now)
        epoch = record.epoch if record is not None else 0
        if why_not:
            return Wait(why_not)
        if own.stands != epoch:
            return Stand(epoch)
        if asked or self._is_next(view, own, now):
            return Elect(self._elected(epoch, own), view.revision)
        return Wait("another candidate has a longer log")

    def why_not(self, view: View, own: Alive) -> str:
        """Why we cannot be elected, unless an operator accepts the loss; "": we can."""
        if view.record is not None:
            return self._why_not(view.record, own)
        leading = [alive for alive in view.alive.values() if alive.leads > own.leads]
        if leading:  # the record was deleted, or an arbiter restored
            return f"there is no record of a master, but broker {leading[0].broker_id} leads"
        if own.last_epoch and not own.electable:
            return (
                "there is no record of a master, and this replica may lack acknowledged messages: "
                "start the others, or use `aerobee promote --accept-loss`"
            )
        return ""

    def _why_not(self, record: Record, own: Alive) -> str:
        members = ", ".join(map(str, sorted(record.in_sync)))
        remedy = f"start one of the brokers {members}, or use `aerobee promote --accept-loss`"
        if self._id not in record.in_sync:
            return f"the master is gone, and this replica is not in sync: {remedy}"
        if not own.electable:
            return (
                "the master is gone, and this replica may lack acknowledged messages, as its "
                f"machine lost power or its folder is new: {remedy}"
            )
        return ""

    def _begin(self, view: View, own: Alive, now: float) -> Step:
        """There is no record yet, or no longer."""
        waited = self._waited(view, now)
        if why := self.why_not(view, own):
            return Wait(why)
        if not own.may_begin and not own.leads:
            return Wait("there is no master yet, and brokerRole=SLAVE waits for one")
        others = [alive for alive in view.alive.values() if alive.may_begin and not own.leads]
        if waited < BEGIN_S or any(other.place > own.place for other in others):
            return Wait("there is no master yet")
        return Elect(self._elected(0, own), 0)

    def _is_next(self, view: View, own: Alive, now: float) -> bool:
        assert view.record is not None
        waited, epoch = self._waited(view, now), view.record.epoch
        standing = [alive for alive in view.alive.values() if alive.stands == epoch]
        others = view.record.in_sync - {self._id, view.record.master}
        complete = others <= {alive.broker_id for alive in standing}
        members = [each for each in standing if each.broker_id in view.record.in_sync]
        greatest = all(each.place <= own.place for each in members if each.electable)
        return greatest and (complete or waited >= PATIENCE_S)

    def _waited(self, view: View, now: float) -> float:
        """How long the record has been without a master."""
        if self._waiting is None or self._waiting[0] != view.revision:
            self._waiting = view.revision, now
        return now - self._waiting[1]

    def _elected(self, epoch: int, own: Alive) -> Record:
        number = max(epoch, own.last_epoch) + 1
        return Record(number, self._id, frozenset({self._id}), self._life)
