"""What else is rolled back when a replica's log is cut: progress that depends on the lost part.

Delays and timers delivered into that part were not delivered, from the new master's point of view.
So their progress goes back before them. This is done before the cut: if power is lost in
between, the next start finds their copies in the log and skips them, as after any crash. Offsets of
consumers are limited by every start that finds a shorter log.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.services.delay.schedule import Schedule
from aerobee.broker.services.ledger_book import LedgerBook
from aerobee.broker.services.redelivery import put_again
from aerobee.broker.services.redelivery.origins import origins_since
from aerobee.broker.services.timers.checkpoint import Reached
from aerobee.broker.services.timers.firing import Timers
from aerobee.broker.services.timers.messages import deliver_time
from aerobee.broker.settings import Settings
from aerobee.broker.store.files.disk import Disk
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.settings import StoreSettings
from aerobee.protocol.names import TIMER_TOPIC

log = structlog.get_logger("aerobee.ha")


def take_back_progress(
    store_settings: StoreSettings, settings: Settings, clock: Clock, disk: Disk, cut_to: int
) -> None:
    """Before the log of a stopped broker is cut here."""
    store = MessageStore(store_settings, clock=clock, disk=disk, ahead=False)
    store.load()
    try:
        lost = store.max_physical_offset - cut_to
        log.warning("the log is cut: what follows is not the master's", at=cut_to, bytes=lost)
        undone = {origin for origin in origins_since(store, cut_to) if origin < cut_to}
        schedule = Schedule(store, settings, clock, store.settings.layout.config)
        schedule.load()
        schedule.take_back(undone, cut_to)
        folder = store.settings.layout.config
        LedgerBook(folder, store, clock).take_back(cut_to)
        _take_back_timers(store, settings, clock, undone, cut_to)
    finally:
        store.close()


def _take_back_timers(
    store: MessageStore, settings: Settings, clock: Clock, undone: Iterable[int], cut_to: int
) -> None:
    points = Timers(store, settings, clock, settings.store_path_root_dir).checkpoints
    if not store.disk.exists(points.path):
        return
    point = points.load()
    read_ms, mark = point.read_ms, min(points.mark or 0, cut_to)
    for origin in undone:
        record = put_again.message_at(store, origin)
        due_ms = deliver_time(record.properties) if record else None
        if record is not None and record.topic == TIMER_TOPIC and due_ms is not None:
            read_ms = min(read_ms, due_ms // 1000 * 1000)
            mark = min(mark, origin)  # the copies of its second are stored after it
    points.save(Reached(0, mark, 0, (), read_ms, max(point.log_end, 1), point.queue_offset))
    points.close()


def forget_timer_log(disk: Disk, root: str) -> None:
    """A slave notes no timers. Those of its time as a master would be incomplete once it is one
    again: then all are read from the log again."""
    folder = os.path.join(root, "timerlog")
    if disk.exists(folder) and disk.listdir(folder):
        disk.rmtree(folder)
        disk.syncdir(root)
