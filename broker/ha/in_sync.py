"""The in-sync set of a master and its acknowledgements: which replicas have what. No I/O.

A put is acknowledged, and shown to consumers, once every broker that the record may name as in sync
has it: those of the recorded set, and those of every proposed set whose outcome is not known for
certain. So any replica that can be elected has it, whatever the outcome of a proposal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from aerobee.broker.base.clock import Clock
from aerobee.broker.ha.copies import Who
from aerobee.broker.store.durability.waiters import Waiters
from aerobee.broker.store.results import DurableCallback, PutStatus

NEAR_BYTES: Final = 1 << 20  # a slave that lacks less is taken into the set
MOMENT_S: Final = 0.2


class InSync:
    """Replaces `Copies` at a master that an arbiter has elected."""

    are_awaited: Final = True  # consumers do, if not answers

    def __init__(
        self,
        clock: Clock,
        log_end: Callable[[], int],
        safe_end: Callable[[], int],
        on_confirm: Callable[[int | None], None],
        *,
        own_id: int,
        members: frozenset[int],
        late_s: float,
        timeout_ms: int,
        least: int = 1,
    ) -> None:
        """`safe_end`: up to where a crash takes nothing from our own log. `on_confirm` is called
        with the confirm offset when it has grown; None: no other replica is in sync, so the whole
        log is confirmed. `late_s`: a replica that lacks older records leaves the set. `least`:
        with fewer recorded members nothing is acknowledged."""
        self._clock = clock
        self._log_end = log_end
        self._safe_end = safe_end
        self._on_confirm = on_confirm
        self._own_id = own_id
        self._late_s = late_s
        self.least = least
        self.recorded = members
        self._undecided: frozenset[int] = frozenset()  # of proposals whose outcome is unknown
        self._joining: dict[int, tuple[int, float]] = {}  # (offset it must reach, deadline)
        self._too_far: set[int] = set()  # members that reconnected with less than they had
        self._stuck: set[int] = set()  # were late, and have acknowledged nothing new since
        self._links: dict[object, tuple[Who, int]] = {}
        self._in_step_at: dict[int, float] = {}
        self.waited_for = members - {own_id}  # members whose copies a put needs, beside our own
        self._end_before = log_end()  # a moment ago
        self._observed_at = clock.monotonic()
        self._epoch_start = self._confirm = log_end()
        self.waiters = Waiters(clock, timeout_ms / 1000, PutStatus.FLUSH_SLAVE_TIMEOUT)
        for member in members:
            self._in_step_at[member] = clock.monotonic()

    # -- reports of the links

    def acked(self, link: object, who: Who, end: int) -> None:
        is_first = link not in self._links
        _, before = self._links.get(link, (who, -1))
        self._links[link] = who, end
        if not isinstance(who, int):
            return  # a Java slave without an id is never a member
        if end > before:
            self._stuck.discard(who)
        if is_first and who in self.waited_for and end < self._confirm:
            self._too_far.add(who)
        self._advance()

    def left(self, link: object) -> None:
        self._links.pop(link, None)

    def by_broker(self) -> dict[Who, int]:
        """How much of the log each has, by its newest connection."""
        return dict(self._links.values())

    # -- acknowledgements

    def confirmed(self) -> int:
        """The confirm offset: we and all members have the log up to here. Replicas may show it to
        consumers. Any thread may call this."""
        safe = self._safe_end()
        return min(self._confirm, safe) if self.waited_for else safe

    def _count(self) -> None:
        """Call after the set, a proposal or the joining members have changed."""
        self.waited_for = (self.recorded | self._undecided | self._joining.keys()) - {self._own_id}
        self._advance()

    def _advance(self) -> None:
        """Recompute up to where all members have the log."""
        needed, before = self.waited_for, self._confirm
        if needed:
            has = self.by_broker()
            self._confirm = max(before, min(has.get(member, 0) for member in needed))
        else:
            self._confirm = self._log_end()
        if self._confirm > before or not needed:
            self._on_confirm(self._confirm if needed else None)
        if self.is_enough:  # else puts wait until it is large enough, or time out
            self.waiters.reached(self._confirm)

    @property
    def is_enough(self) -> bool:
        return len(self.recorded) >= self.least

    def when_copied(self, end: int, callback: DurableCallback) -> None:
        """Call back when all of them have it."""
        if self.is_enough and (not self.waited_for or end <= self._confirm):
            callback(PutStatus.PUT_OK)
        else:
            self.waiters.add(end, callback)

    def is_in_sync(self, acked: int) -> bool:
        """For reports: whether it is close enough to join the set."""
        return self._log_end() - acked < NEAR_BYTES

    def all_follow(self) -> bool:
        """Whether all other members are connected and caught up. None is a candidate then."""
        now, has = self._clock.monotonic(), self.by_broker()
        return all(one in has and not self._is_late(one, now) for one in self.waited_for)

    # -- membership

    def observe(self) -> set[int]:
        """The replicas that have caught up: they have all that the log had a moment ago."""
        now, before = self._clock.monotonic(), self._end_before
        has = self.by_broker().items()
        in_step = {one for one, acked in has if isinstance(one, int) and acked >= before}
        for member in in_step:
            self._in_step_at[member] = now
        if now - self._observed_at >= MOMENT_S:
            self._end_before, self._observed_at = self._log_end(), now
        return in_step

    def propose(self, electable: Collection[int]) -> frozenset[int] | None:
        """Check all members, several times a second; returns the set to propose, if it changed.
        Only electable replicas join: else the set might have no possible successor."""
        in_step, has = self.observe(), self.by_broker()
        near = {one for one in electable if one in has and self.is_in_sync(has[one])}
        near -= self._stuck  # its link may be dead: puts would wait for it again and again
        now = self._clock.monotonic()
        self._update_joining((in_step & {*electable}) | near, has, now)
        leaving = {member for member in self.recorded if self._leaves(member, now)}
        self._stuck |= leaving
        joined = {one for one, (until, _) in self._joining.items() if has.get(one, 0) >= until}
        wanted = (self.recorded - leaving) | joined | {self._own_id}
        return wanted if wanted != self.recorded or self._undecided else None

    def _leaves(self, member: int, now: float) -> bool:
        if member == self._own_id:
            return False
        return member in self._too_far or self._is_late(member, now)

    def _is_late(self, member: int, now: float) -> bool:
        return now - self._in_step_at.get(member, now) > self._late_s

    def _update_joining(self, able: set[int], has: dict[Who, int], now: float) -> None:
        for late in [one for one in self._joining if self._is_abandoned(one, has, now)]:
            del self._joining[late]
            self._stuck.add(late)
            self._count()
        for member in able:
            known = member in self.recorded or member in self._joining
            if not known and has[member] >= self._epoch_start:
                # From here on puts wait for it. Once it has what was confirmed without it, it is
                # a full member.
                self._advance()
                self._in_step_at[member] = now
                self._joining[member] = self._confirm, now + self._late_s
                self._count()
                self._on_confirm(self._confirm)

    def _is_abandoned(self, member: int, has: dict[Who, int], now: float) -> bool:
        until, late_at = self._joining[member]
        return member not in has or (has[member] < until and now > late_at)

    # -- outcomes of proposals

    def proposed(self, wanted: frozenset[int]) -> frozenset[int]:
        """A proposal is about to be sent: until its outcome is known, its members count. Returns
        the argument for `refused`."""
        before = self._undecided
        self._undecided |= wanted
        self._count()
        return before

    def refused(self, before: frozenset[int]) -> None:
        """The last proposal was certainly not stored; earlier ones stay undecided."""
        self._undecided = before
        self._count()

    def decided(self, members: frozenset[int]) -> None:
        """This is certainly the recorded set: it was stored after all proposals."""
        self.recorded = members
        self._undecided = frozenset()
        for member in members:
            self._joining.pop(member, None)
        self._too_far &= members
        self._count()
