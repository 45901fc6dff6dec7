"""The properties of a message that SQL92 filters may use: all that are stored with it.

A property that is computed from those is added here, in `filter_properties`. One that the broker
stores with every message is added in `handlers.send` (`Sends.added`), and is then found here.
"""

from collections.abc import Callable

from aerobee.broker.sql92 import Predicate
from aerobee.protocol.files.properties import parse
from aerobee.protocol.files.record_layout import record_properties


def filter_properties(stored: str) -> dict[str, str]:
    """What a filter sees of a message with this property string."""
    return parse(stored)


def record_matcher(predicate: Predicate) -> Callable[[memoryview], bool]:
    """For `store.read_queue(matches_record=...)`."""
    return lambda record: predicate(filter_properties(record_properties(record)))


def properties_matcher(predicate: Predicate) -> Callable[[str], bool]:
    """For arrivals, which carry the property string."""
    return lambda stored: predicate(filter_properties(stored))
