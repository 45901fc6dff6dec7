"""A broker's role over its life: remembered in config/, bound to the epochs of its log."""

from __future__ import annotations

import os

import structlog

from aerobee.broker.base.refused import Refused
from aerobee.broker.ha.epochs import EpochFile, Epochs
from aerobee.broker.ha.role import FILE_NAME, Decision, Role, RoleFile, decide_role
from aerobee.broker.services.config_files.classes import config_path
from aerobee.broker.settings import Settings
from aerobee.broker.settings.replication import SLAVE
from aerobee.broker.store.errors import StoreError
from aerobee.broker.store.files.disk import Disk
from aerobee.broker.store.message_store import MessageStore
from aerobee.protocol.files import epoch_file
from aerobee.protocol.wire.codes import ResponseCode

log = structlog.get_logger("aerobee.app")


class Roles:
    """One broker's role. The role that it has now is in `settings`."""

    def __init__(self, settings: Settings, disk: Disk) -> None:
        root = settings.store_path_root_dir
        self._settings = settings
        self._configured = settings.broker_role
        self.broker_id = settings.broker_id  # as a slave
        # With an arbiter: its decision. A broker that starts is never a master from memory.
        self._arbiter_says = Decision(SLAVE) if settings.has_arbiter else None
        self._epoch_to_begin = 0
        self._reported = 0
        self._role_file = RoleFile(config_path(os.path.join(root, "config"), FILE_NAME), disk)
        self.epoch_file = EpochFile(os.path.join(root, epoch_file.FILE_NAME), disk)

    def choose(self) -> None:
        """Before a start: set our role in the settings."""
        try:
            self._role_file.load()
        except OSError as error:
            raise StoreError(
                f"the role of this broker cannot be read: {error}; check the permissions there"
            ) from error
        self.epoch_file.load()
        saved = self._role_file.saved
        last = self.epoch_file.epochs.last
        chosen = self._arbiter_says or decide_role(self._configured, saved, last)
        self._epoch_to_begin = chosen.epoch
        settings = self._settings
        settings.broker_role = chosen.role
        settings.broker_id = self.broker_id if settings.is_slave else 0
        if chosen.role != self._configured and self._arbiter_says is None:
            log.info(
                "the role is that of an earlier decision, not that of the settings",
                role=chosen.role,
                configured=self._configured,
            )

    def opened(self, store: MessageStore, cut_to: int | None) -> None:
        """The log is recovered and not written to yet: adjust the epochs to it, and begin our own
        if we have become the master. OSError when the disk refuses."""
        file, end = self.epoch_file, store.max_physical_offset
        epochs = file.epochs.within(end) if cut_to is None else file.epochs.cut(cut_to)
        if self.begins_epoch:
            if not epochs and end > store.min_physical_offset:
                epochs = epochs.begun(1, store.min_physical_offset)
            if self._epoch_to_begin > epochs.last:  # else a start that failed has begun it
                epochs = epochs.begun(self._epoch_to_begin, end)
            log.info("this broker is the master from here on", epoch=epochs.last, offset=end)
        if epochs != file.epochs:
            file.save(epochs)
        if self._arbiter_says is not None:  # without it, later, an operator decides
            known = max(self._newest_known, epochs.last)
            self._role_file.save(Role(self._configured, SLAVE, known))
        elif self._settings.is_slave or self._role_file.saved is not None:
            known = epochs.last
            if self._settings.is_slave:
                known = max(self._newest_known, known)
            self._role_file.save(Role(self._configured, self._settings.broker_role, known))

    def decided(self, role: str, epoch: int = 0) -> None:
        """The arbiter has decided: our role after the next start, and the epoch that we begin as
        a master."""
        self._arbiter_says = Decision(role, epoch)
        self._reported = max(self._reported, epoch)

    @property
    def must_lead(self) -> bool:
        """Whether an arbiter wants us to be the master, now or after the next start."""
        return self._arbiter_says is not None and self._arbiter_says.role != SLAVE

    @property
    def may_begin(self) -> bool:
        """Whether our settings let us be the first master."""
        return self._configured != SLAVE or self._settings.enable_controller_mode

    @property
    def begins_epoch(self) -> bool:
        """Whether this start makes us the master of a log that another broker wrote."""
        return bool(self._epoch_to_begin) and not self._settings.is_slave

    def promote(self, role: str) -> int:
        """Remember that this slave becomes the master at its next start; returns its epoch."""
        if not self._settings.is_slave:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"this broker is {self._settings.broker_role} already, in epoch {self.epoch}",
            )
        epoch = max(self.epoch, self._newest_known, 1) + 1
        self._role_file.save(Role(self._configured, role, epoch))
        return epoch

    def demote(self, epoch: int) -> bool:
        """Remember that another broker is the master now. False: our settings say that we are the
        master, and an operator has to change them."""
        if self._configured != SLAVE:
            return False
        self._role_file.save(Role(self._configured, SLAVE, epoch))
        return True

    def note_epoch(self, epoch: int) -> None:
        """Some broker was the master in this epoch, even if our log has no byte of it."""
        self._reported = max(self._reported, epoch)

    @property
    def _newest_known(self) -> int:
        """The greatest epoch that we know of. Its number is used, even if a power cut has removed
        it from our log."""
        saved = self._role_file.saved
        return max(self._reported, saved.epoch if saved is not None else 0)

    @property
    def epoch(self) -> int:
        return self.epoch_file.epochs.last

    @property
    def epochs(self) -> Epochs:
        return self.epoch_file.epochs
