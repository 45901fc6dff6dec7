"""Queue locks of orderly consumers: taken before reading, renewed, released."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from aerobee.client.core import Core
from aerobee.client.errors import AerobeeError, NoRoute
from aerobee.client.message import DELAY_LEVELS, Message
from aerobee.client.transport.remoting import log_level
from aerobee.protocol.json import fastjson
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.wire.codes import RequestCode

log = logging.getLogger("aerobee.consumer")

LOCK_SECONDS: Final = 30.0  # the broker's locks last 60; after 30 without renewal we assume it lost
RENEW_SECONDS: Final = 20.0
PAUSE_LEVEL_MAX: Final = DELAY_LEVELS.index(60)


async def lock(
    core: Core, group: str, queues: Iterable[MessageQueue]
) -> tuple[set[MessageQueue], set[MessageQueue]]:
    """Take or renew the locks; returns those we hold now, and those that brokers refused."""
    locked: set[MessageQueue] = set()
    asked: set[MessageQueue] = set()
    for address, mine in _by_broker(core, queues).items():
        try:
            answer = await core.remoting.ask(
                address,
                RequestCode.LOCK_BATCH_MQ,
                body=_body(core, group, mine),
                what=f"the queue locks of group {group!r}",
            )
        except AerobeeError as error:
            log.log(log_level(error), "%s", error)
            continue
        asked.update(mine)
        found = fastjson.loads(answer.body).get("lockOKMQSet") or ()
        locked |= {
            MessageQueue(row["topic"], row["brokerName"], int(row["queueId"])) for row in found
        }
    return locked, asked - locked


async def unlock(core: Core, group: str, queues: Iterable[MessageQueue]) -> None:
    """Release locks, so that others need not wait for them to expire."""
    for address, mine in _by_broker(core, queues).items():
        try:
            await core.remoting.ask(
                address,
                RequestCode.UNLOCK_BATCH_MQ,
                body=_body(core, group, mine),
                what=f"the unlocking of group {group!r}",
            )
        except AerobeeError as error:
            log.info("%s", error)


def pause(message: Message) -> float:
    """Seconds before an orderly queue retries its message: growing, at most a minute."""
    return float(DELAY_LEVELS[min(message.reconsume_times, PAUSE_LEVEL_MAX)])


def expiry() -> float:
    """Until when a lock taken now can be trusted."""
    return asyncio.get_running_loop().time() + LOCK_SECONDS


def _by_broker(core: Core, queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        try:
            address = core.routes.address(queue.broker_name)
        except NoRoute as error:  # the other brokers still have to be asked
            log.info("%s", error)
        else:
            found.setdefault(address, []).append(queue)
    return found


def _body(core: Core, group: str, queues: list[MessageQueue]) -> bytes:
    return fastjson.dumps(
        {
            "clientId": core.client_id,
            "consumerGroup": group,
            "mqSet": queues,
            "onlyThisBroker": False,
        }
    )
