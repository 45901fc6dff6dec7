"""CHECK_CLIENT_CONFIG: a consumer asks whether its SQL92 expression can be used."""

from aerobee.broker.base.refused import Refused
from aerobee.broker.handlers.common import Handlers, read_body, success
from aerobee.broker.handlers.context import Broker
from aerobee.broker.net.requests import Request
from aerobee.broker.services.clients.subscription import TAG
from aerobee.broker.services.filters.sql_filters import compiled
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command


def check_client_config(broker: Broker, request: Request) -> Command:
    if not request.command.body:
        return success(request)  # nothing to check
    subscription = read_body(request).get("subscriptionData")
    if not isinstance(subscription, dict):
        return success(request)
    kind = str(subscription.get("expressionType") or TAG)
    if kind == TAG:
        return success(request)
    if not broker.settings.enable_property_filter:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {kind}: "
            "enablePropertyFilter is false",
        )
    compiled(str(subscription.get("subString") or ""), kind)
    return success(request)


HANDLERS: Handlers = {RequestCode.CHECK_CLIENT_CONFIG: check_client_config}
