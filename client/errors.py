"""The errors of the SDK: each says what happened, to what, whether a retry can help, what to do."""

from __future__ import annotations

from typing import Final, NamedTuple

from aerobee.protocol.wire.codes import ResponseCode


class AerobeeError(Exception):
    """The root of all errors that this SDK raises on purpose."""

    retriable = False

    def __init__(self, text: str, *, hint: str = "") -> None:
        super().__init__(f"{text} ({hint})" if hint else text)
        self.hint = hint


class Misuse(AerobeeError, ValueError):
    """The call itself is wrong: the same call can never succeed."""


class Reject(Exception):
    """Raise it in a handler to move the message to the dead letters at once, with this reason."""


class Closed(AerobeeError):
    """The object was closed; make a new one."""


class ConnectFailed(AerobeeError):
    """No connection could be made; nothing was sent."""

    retriable = True


class ConnectionLost(AerobeeError):
    """The connection broke while an answer was awaited: the request may have been carried out."""

    retriable = True


class RequestTimeout(AerobeeError):
    """No answer came in time: the request may have been carried out."""

    retriable = True


class Overloaded(AerobeeError):
    """Too many sends are in flight; this one was not sent."""

    retriable = True

    def __init__(self, text: str) -> None:
        super().__init__(
            text, hint="nothing was sent; limit the sends in flight, or check the broker"
        )


class Unconfirmed(AerobeeError):
    """A send whose outcome is unknown: the message may be stored. Resend only if that is safe."""

    retriable = True

    def __init__(self, text: str, *, message_id: str, topic: str) -> None:
        super().__init__(
            text,
            hint="it may be stored: look it up by its id, or resend if consumers are idempotent",
        )
        self.message_id = message_id
        self.topic = topic


class NotFound(AerobeeError):
    """What was asked for does not exist."""


class NoRoute(NotFound):
    """No name server knows a broker for the topic."""

    retriable = True


class SendsFailed(AerobeeError):
    """Buffered messages that could not be delivered; `failures` pairs each with its error."""

    def __init__(self, failures: list[tuple[bytes, AerobeeError]]) -> None:
        count, first = len(failures), failures[0][1]
        super().__init__(f"{count} buffered message(s) were not delivered; the first: {first}")
        self.failures = failures
        self.retriable = all(error.retriable for _, error in failures)


class BrokerError(AerobeeError):
    """The broker refused: `code` and `remark` are those of its answer."""

    def __init__(self, code: int, remark: str | None, *, what: str = "the request") -> None:
        row = _REFUSALS.get(code, _Refusal("", False))
        try:
            name = ResponseCode(code).name
        except ValueError:
            name = "unknown code"
        super().__init__(
            f"{what} was refused: {code} {name}: {(remark or 'no remark').strip()}", hint=row.hint
        )
        self.code = code
        self.remark = remark or ""
        self.retriable = row.retriable


class TopicNotFound(BrokerError, NotFound):
    """17: the broker has no such topic."""


class NoPermission(BrokerError):
    """16: the topic, the group or the caller may not do that."""


class GroupNotFound(BrokerError, NotFound):
    """26: the broker has no such group."""


class BrokerBusy(BrokerError):
    """2: the broker sheds load."""


class MessageRefused(BrokerError):
    """13: the message itself is not acceptable."""


class ServiceUnavailable(BrokerError):
    """14: the broker does not take writes now."""


class FilterRefused(BrokerError):
    """23: the tag or SQL filter cannot be parsed."""


class _Refusal(NamedTuple):
    hint: str
    retriable: bool
    kind: type[BrokerError] = BrokerError


_REFUSALS: Final[dict[int, _Refusal]] = {
    1: _Refusal("see the broker's log; a later try may succeed", True),
    2: _Refusal("slow down, then try again", True, BrokerBusy),
    3: _Refusal("this broker does not offer that; a newer one may", False),
    13: _Refusal("check body size, properties, topic and delay", False, MessageRefused),
    14: _Refusal(
        "check the broker's disk, role and state: `aerobee doctor`", True, ServiceUnavailable
    ),
    16: _Refusal("check the permission of topic, group and credentials", False, NoPermission),
    17: _Refusal(
        "create it with `aerobee topic create` or switch autoCreateTopicEnable on",
        False,
        TopicNotFound,
    ),
    21: _Refusal("the offset is outside the queue; start from the offset it names", True),
    23: _Refusal("correct the expression", False, FilterRefused),
    24: _Refusal("the next heartbeat registers the subscription", True),
    25: _Refusal("the next heartbeat registers the subscription", True),
    26: _Refusal(
        "create it with `aerobee group create` or switch autoCreateSubscriptionGroup on",
        False,
        GroupNotFound,
    ),
    27: _Refusal("the next heartbeat registers the filter", True),
    28: _Refusal("the next heartbeat registers the filter", True),
    29: _Refusal("check names, queue ids and counts", False),
    204: _Refusal("another broker may accept it", True),
    205: _Refusal("another broker may accept it", True),
    206: _Refusal("start a consumer of the group", True),
    207: _Refusal("the consumer did not answer in time", True),
    215: _Refusal("slow down, then try again", True, BrokerBusy),
    1500: _Refusal("the broker is shutting down; another one may accept it", True),
}


def refusal(code: int, remark: str | None, *, what: str) -> BrokerError:
    """The error for an answer's code."""
    kind = _REFUSALS[code].kind if code in _REFUSALS else BrokerError
    return kind(code, remark, what=what)
