"""What a member asks brokers about its group: who is in it, and whether they accept it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from aerobee.client.consuming.pulling import pull
from aerobee.client.consuming.subscription import SQL92, Subscription
from aerobee.client.core import Core
from aerobee.client.errors import (
    AerobeeError,
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    NoRoute,
    RequestTimeout,
)
from aerobee.client.transport.routes import Route
from aerobee.protocol.json import fastjson
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.wire.codes import RequestCode

log = logging.getLogger("aerobee.consumer")

NO_ANSWER: Final = (ConnectFailed, ConnectionLost, RequestTimeout)


async def check_sql(core: Core, group: str, subscriptions: Iterable[Subscription]) -> None:
    """Let brokers check SQL filters now: else an invalid one would silently match nothing."""
    for row in subscriptions:
        if row.kind != SQL92:
            continue
        body = fastjson.dumps(
            {"clientId": core.client_id, "group": group, "subscriptionData": row.describe()}
        )
        for address in sorted(core.routes.broker_addresses):
            try:
                await core.remoting.ask(
                    address,
                    RequestCode.CHECK_CLIENT_CONFIG,
                    body=body,
                    what=f"the filter {row.expression!r}",
                )
            except NO_ANSWER as error:
                log.warning("group %s: %s", group, error)


async def probe(core: Core, group: str, queue: MessageQueue, subscription: Subscription) -> None:
    """The broker has refused our heartbeat: its answer to a pull says why."""
    await pull(
        core.remoting,
        core.routes.address(queue.broker_name),
        queue,
        0,
        group=group,
        subscription=subscription,
        count=1,
    )


async def members_of(core: Core, group: str, route: Route) -> list[str]:
    """The group's client ids, from the first broker that answers: every one knows them."""
    unreached: AerobeeError = NoRoute(f"no broker of topic {route.topic!r} is known")
    for part in route.parts:
        try:
            answer = await core.remoting.ask(
                core.routes.address(part.broker),
                RequestCode.GET_CONSUMER_LIST_BY_GROUP,
                {"consumerGroup": group, "bname": part.broker},
                what=f"the members of group {group!r}",
            )
        except NO_ANSWER as error:
            unreached = error
        except BrokerError as error:
            if error.code == 1:  # the broker knows no member of the group yet
                return []
            raise
        else:
            return sorted(fastjson.loads(answer.body).get("consumerIdList") or ())
    raise unreached
