"""Bugs to plant: each replaces one function by what a hurried author might write, or once wrote.

The simulation must catch every one; `SEEDS` has a seed that does. Those that others had are named
by their numbers (RocketMQ's #, Kafka's KIP).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from crash.planted import Mutants

from aerobee.broker.daemon.roles import Roles
from aerobee.broker.ha import follower, rejoin, sender
from aerobee.broker.ha.copies import Copies
from aerobee.broker.ha.epochs import Epochs
from aerobee.broker.ha.follower import Follower
from aerobee.broker.ha.receiver import Receiver
from aerobee.broker.ha.rejoin import Cut, Follow, LogState
from aerobee.broker.ha.wire import FrameHead
from aerobee.broker.store import opening
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.reading.log_tail import LogTail, last_entry
from aerobee.broker.store.recovery.recovery import Recovery
from aerobee.protocol.files.epoch_file import Epoch
from ha.simulation import pipe

MUTANTS = Mutants()
mutant = MUTANTS.add


@mutant
def an_empty_epoch_is_kept(patch: pytest.MonkeyPatch) -> None:
    def begun(self: Epochs, number: int, start: int) -> Epochs:
        if self.entries and self.entries[-1].start >= start:
            return self  # RocketMQ refuses the new one
        return Epochs([*self.entries, Epoch(number, start)])

    patch.setattr(Epochs, "begun", begun)


@mutant
def a_promotion_begins_no_epoch(patch: pytest.MonkeyPatch) -> None:
    real = Roles.choose

    def choose(self: Roles) -> None:
        real(self)
        self._epoch_to_begin = 0

    patch.setattr(Roles, "choose", choose)


@mutant
def epochs_are_compared_by_number_alone_kip_279(patch: pytest.MonkeyPatch) -> None:
    def common_end(ours: Epochs, our_end: int, theirs: Epochs, their_end: int) -> int | None:
        known = {epoch.number: end for epoch, end in theirs.ends(their_end)}
        for epoch, end in reversed(ours.ends(our_end)):
            if epoch.number in known:
                return min(end, known[epoch.number])
        return None

    def use_again(self: Roles, role: str) -> int:
        self._reported = 0
        return promote(self, role)

    promote = Roles.promote
    patch.setattr(rejoin, "common_end", common_end)
    patch.setattr(Roles, "promote", use_again)  # else no number comes twice
    _no_compare(patch)


@mutant
def a_returning_master_follows_without_a_cut(patch: pytest.MonkeyPatch) -> None:
    def plan_rejoin(ours: LogState, master: LogState) -> Follow | Cut:
        start = master.start if ours.is_empty else ours.end
        return Follow(master.epochs.cut(ours.end), start)

    patch.setattr(follower, "plan_rejoin", plan_rejoin)
    patch.setattr(sender.Sender, "begin", _believe)
    _no_compare(patch)


def _believe(self: Any, end: int, _start: int, _log_end: int) -> None:
    """The first report is believed whatever it says (#3015, #1155)."""
    self.position = self.acked = end


@mutant
def a_replica_cuts_to_what_is_on_disk_kip_101(patch: pytest.MonkeyPatch) -> None:
    """As one that takes the confirm offset, which it hears late, for the end of its log."""
    real = Follower.plan

    def plan(self: Follower, welcome: Any, master_start: int) -> Follow | Cut:
        found = real(self, welcome, master_start)
        store = self._store
        last = store.log_tail().record
        if isinstance(found, Follow) and last and last[0] > store.min_physical_offset:
            return Cut(last[0])
        return found

    patch.setattr(Follower, "plan", plan)


@mutant
def the_tail_is_cut_without_a_sync_10666(patch: pytest.MonkeyPatch) -> None:
    def cut_log(commit_log: Any, end: int, **_: Any) -> None:
        files = commit_log.files
        files.remove_all(end if files.find(end) is None or end % files.file_size else end + 1)
        for file in files.files:
            if file.end > end:
                file.set_positions(end - file.start)
        commit_log.flushed_offset = end

    patch.setattr(opening, "cut_log", cut_log)


@mutant
def queues_are_not_numbered_by_the_log_7689(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recovery, "_number_queues", lambda self: None)


@mutant
def an_ack_says_what_is_not_on_disk(patch: pytest.MonkeyPatch) -> None:
    def held(_store: MessageStore, receiver: Receiver, _first: int) -> int:
        return receiver.whole

    patch.setattr(pipe, "held", held)


@mutant
def the_first_ack_says_what_is_not_on_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Follower, "is_settled", True)


@mutant
def an_epoch_is_noted_after_its_bytes(patch: pytest.MonkeyPatch) -> None:
    """Never, for a slave that is cut off before the next one."""

    def begun(self: Follower, head: FrameHead) -> None:
        assert head.epoch is not None
        known = self._epoch_file.epochs
        if head.epoch.number > known.last:
            self._epoch_file.epochs = known.begun(*head.epoch)

    patch.setattr(Follower, "_frame_begun", begun)


@mutant
def the_newest_message_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    _no_compare(patch)


def _no_compare(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pipe, "compare", lambda *_: None)


@mutant
def only_dispatched_messages_are_compared(patch: pytest.MonkeyPatch) -> None:
    def log_tail(self: MessageStore, before: int = 1 << 62) -> LogTail:
        return LogTail(last_entry(self.queue_table, before), None, before)

    patch.setattr(MessageStore, "log_tail", log_tail)


@mutant
def the_end_of_a_file_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    real = MessageStore.log_tail

    def log_tail(self: MessageStore, before: int = 1 << 62) -> LogTail:
        return LogTail(real(self, before).record, None, before)

    patch.setattr(MessageStore, "log_tail", log_tail)


@mutant
def a_number_is_used_for_two_epochs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Roles, "note_epoch", lambda self, epoch: None)


@mutant
def acks_of_a_link_that_ended_still_count(patch: pytest.MonkeyPatch) -> None:
    def acked(self: Copies, link: object, who: int, end: int) -> None:
        best = max(self.by_broker().get(who, 0), end) + 400  # what is under way counts as there
        self._links[link] = who, best
        self._reached = max(self._reached, self.copied_offset)
        self.waiters.reached(self._reached)

    patch.setattr(Copies, "acked", acked)


@mutant
def the_checkpoint_is_not_lowered_before_a_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(opening, "replace", lambda point, **_: replace(point))


# A seed that catches it.
SEEDS: dict[str, int] = {
    "an_empty_epoch_is_kept": 111,
    "a_promotion_begins_no_epoch": 1,
    "epochs_are_compared_by_number_alone_kip_279": 1,
    "a_returning_master_follows_without_a_cut": 3,
    "a_replica_cuts_to_what_is_on_disk_kip_101": 6,
    "the_tail_is_cut_without_a_sync_10666": 1,
    "queues_are_not_numbered_by_the_log_7689": 1,
    "an_ack_says_what_is_not_on_disk": 61,
    "an_epoch_is_noted_after_its_bytes": 89,
    "a_number_is_used_for_two_epochs": 1,
    "acks_of_a_link_that_ended_still_count": 1,
    "the_checkpoint_is_not_lowered_before_a_cut": 19,
    "the_newest_message_is_not_compared": 49,
    "the_first_ack_says_what_is_not_on_disk": 602,
    "the_end_of_a_file_is_not_compared": 3427,
    "only_dispatched_messages_are_compared": 198,
}
