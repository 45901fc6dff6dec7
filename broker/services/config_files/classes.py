"""Every file under config/, and whether a slave has it from its master.

A service asks here for the name of its file, so none is written without a class.
"""

import os
import re
from enum import Enum, auto
from typing import Final


class Kept(Enum):
    REPLICATED = auto()  # a slave copies its master's
    LOCAL = auto()  # each broker has its own
    JAVA = auto()  # of RocketMQ 5, for features that we do not have: not touched


CLASSES: Final = {
    "topics.json": Kept.REPLICATED,
    "subscriptionGroup.json": Kept.REPLICATED,
    "consumerOffset.json": Kept.REPLICATED,
    "delayOffset.json": Kept.REPLICATED,
    "timercheck": Kept.REPLICATED,
    "brokerRole.json": Kept.LOCAL,
    "replicaState.json": Kept.LOCAL,  # whether this one may be elected
    "timerMoves": Kept.LOCAL,  # of the timer log, which a slave does not have
    "consumerFilter.json": Kept.LOCAL,  # from heartbeats, which clients send to slaves too
    "consumerMembers.json": Kept.LOCAL,  # who was online here
    "access.json": Kept.REPLICATED,  # users and rights; those in the operator's files are compared
    "kvConfig.json": Kept.LOCAL,  # of the name service
    "sparkSink.json": Kept.REPLICATED,  # its newest part is also in the log
    "whyHistory.json": Kept.LOCAL,  # observed here: which groups read, left or were moved
    "broadcastOffset.json": Kept.JAVA,
    "consumerOrderInfo.json": Kept.JAVA,
    "lmqConsumerOffset.json": Kept.JAVA,
    "messageRequestMode.json": Kept.JAVA,
    "timermetrics": Kept.JAVA,
    "topicQueueMapping.json": Kept.JAVA,
    "tieredStoreMetadata.json": Kept.JAVA,
}
_BESIDE: Final = re.compile(r"(\.bak|\.tmp|\.new|\.journal)+$")  # files written beside a file


def config_path(folder: str, name: str) -> str:
    """Where a service keeps its file. KeyError: it has no class, and needs one in CLASSES."""
    assert CLASSES[name]
    return os.path.join(folder, name)


def without_class(names: list[str]) -> list[str]:
    """The names in a folder that have no class."""
    return [name for name in names if _BESIDE.sub("", name) not in CLASSES]
