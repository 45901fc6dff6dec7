"""Who sends a request, whether it is allowed, and the text of a denial."""

from dataclasses import dataclass
from typing import Final, NoReturn

from aerobee.broker.auth.model import PUB, SUB, TOPIC, Resource, User, Verdict, decide
from aerobee.broker.auth.needs import Ask, is_kept_by_broker, is_trace, of_group, of_topic
from aerobee.broker.base.refused import Refused
from aerobee.protocol.wire.codes import ResponseCode

# Why a request is denied: for the log and the metric.
UNSIGNED: Final = "unsigned"
BAD_SIGNATURE: Final = "bad signature"
DISABLED: Final = "disabled"
NO_RIGHT: Final = "no right"
STALE: Final = "stale"


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated requester; `user` None: the request comes from a whitelisted address."""

    name: str
    address: str
    user: User | None
    generation: int  # of the users, when it was authenticated
    certificate: str = ""  # that identifies it, without a signature

    @property
    def secrets(self) -> tuple[str, ...]:
        """Its requests are signed with one of these; empty: it need not sign."""
        return self.user.secrets if self.user is not None and not self.certificate else ()


class Denied(Refused):
    """A request that is not allowed."""

    def __init__(self, reason: str, text: str, rule: str = "") -> None:
        super().__init__(ResponseCode.NO_PERMISSION, text)
        self.reason = reason
        self.rule = rule


def proven(principal: Principal) -> str:
    """The authenticated user's name; "" for a request that is only from a white address."""
    return principal.name if principal.user is not None else ""


def send_asks(topic: str) -> tuple[Ask, ...]:
    return (of_topic(topic, PUB),)


def pull_asks(topic: str, group: str) -> tuple[Ask, ...]:
    return of_topic(topic, SUB), of_group(group, SUB)


def judge(user: User, actions: frozenset[str], resource: Resource, address: str) -> Verdict:
    """The decision; the broker's own topics have special rules."""
    if resource.kind == TOPIC:
        if is_trace(resource.name) and PUB in actions:
            return Verdict(True, "traces may be sent by every user")
        if is_kept_by_broker(resource.name) and not user.is_super:
            return Verdict(False, "the topic is the broker's own, only a super user may")
    return decide(user, actions, resource, address)


def deny(principal: Principal, what: str, verdict: Verdict) -> NoReturn:
    raise Denied(
        NO_RIGHT,
        f"User:{principal.name} has no permission to {what} from {principal.address}: "
        f"{verdict.reason}",
        verdict.origin,
    )
