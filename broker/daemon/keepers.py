"""The keepers of a broker's store: whose messages wait in the log."""

from typing import TYPE_CHECKING

from aerobee.broker.base.clock import Clock
from aerobee.broker.services.delay.keeper import ScheduleKeeper
from aerobee.broker.services.delay.schedule import Schedule
from aerobee.broker.services.timers.firing import Timers
from aerobee.broker.services.transactions.keeper import TransactionKeeper
from aerobee.broker.services.transactions.service import Transactions
from aerobee.broker.settings import Settings

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore


def add_keepers(
    store: "MessageStore",
    settings: Settings,
    clock: Clock,
    schedule: Schedule,
    timers: Timers,
    transactions: Transactions,
) -> None:
    """Delayed messages first: they become timers, of a file that stays."""
    store.add_keeper(ScheduleKeeper(store, schedule, settings, clock))
    store.add_keeper(TransactionKeeper(store, transactions))
    if settings.timer_wheel_enable:
        store.add_keeper(timers.keeper)
