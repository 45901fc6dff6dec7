"""A slave's side of one link with epochs, without its socket: plan, start, acknowledge."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aerobee.broker.ha.epochs import EpochFile, Epochs
from aerobee.broker.ha.receiver import Receiver
from aerobee.broker.ha.rejoin import Cut, Follow, LogState, plan_rejoin
from aerobee.broker.ha.wire import FrameHead, FrameReader, StreamError, Welcome
from aerobee.protocol.files.epoch_file import Epoch

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore


class Follower:
    def __init__(
        self,
        store: MessageStore,
        epoch_file: EpochFile,
        on_confirm: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_confirm` is called with the master's confirm offset."""
        self._on_confirm = on_confirm
        self._store = store
        self._epoch_file = epoch_file
        self._theirs: tuple[Epoch, ...] = ()  # the master's epochs, from its handshake

    @property
    def is_settled(self) -> bool:
        """Whether our first ack, which covers all that we have, is valid: a SYNC_FLUSH slave may
        have more than is on its disk when its link breaks."""
        store = self._store
        return not store.sync_flush or store.flushed_offset >= store.max_physical_offset

    def plan(self, welcome: Welcome, master_start: int) -> Follow | Cut:
        """What to do with our log; StreamError says why we cannot follow."""
        store, self._theirs = self._store, welcome.epochs
        return plan_rejoin(
            LogState(store.min_physical_offset, store.max_physical_offset, self._epoch_file.epochs),
            LogState(master_start, welcome.log_end, Epochs(welcome.epochs)),
        )

    def begin(self, plan: Follow) -> Receiver:
        """Our log is a prefix of the master's: continue."""
        self._epoch_file.save(plan.epochs)
        size = self._store.settings.mapped_file_size_commit_log
        frames = FrameReader(size, with_epochs=True, begun=self._frame_begun)
        return Receiver(plan.position, size, frames=frames)

    def _frame_begun(self, head: FrameHead) -> None:
        """Write an epoch's entry to disk before its first byte. A Java master names the next epoch
        with the last bytes of the one before: a short one would be missed."""
        epochs, epoch = self._epoch_file.epochs, head.epoch
        assert epoch is not None
        entries = epochs.entries
        if not entries or epoch != entries[-1]:
            self._other_epoch(epochs, epoch)
        self._on_confirm(head.confirmed)

    def _other_epoch(self, epochs: Epochs, epoch: Epoch) -> None:
        """The master sends bytes of an epoch that is not our last one."""
        if epoch.number > epochs.last:
            for passed in self._theirs:
                if epochs.last < passed.number < epoch.number:
                    epochs = epochs.begun(*passed)
            self._epoch_file.save(epochs.begun(*epoch))
        elif epochs:
            raise StreamError(
                f"the master sends epoch {epoch.number} from {epoch.start}, we are in {epochs!r}"
            )


def held(store: MessageStore, receiver: Receiver, first: int) -> int:
    """The offset to acknowledge: what we have, as durable as our settings ask for. Not less than
    the first ack of the link, from which the master continues: it may see only the last one."""
    safe = store.flushed_offset if store.sync_flush else receiver.whole
    return max(min(safe, receiver.whole), first)
