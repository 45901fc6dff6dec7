"""Users, rules and the decision: who may do what with which topic, group or cluster.

The decision is RocketMQ 5's. A super user may do all. Of the rules that match resource, action and
address, the most exact one decides (a name, then the longest prefix, then a whole kind, then `*`);
of two alike, deny wins; default rules count only where no other matches; without a match: denied.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

PUB: Final = "Pub"
SUB: Final = "Sub"
CREATE: Final = "Create"
UPDATE: Final = "Update"
DELETE: Final = "Delete"
GET: Final = "Get"
LIST: Final = "List"
ACTIONS: Final = (PUB, SUB, CREATE, UPDATE, DELETE, GET, LIST)
ALL_ACTIONS: Final = frozenset(ACTIONS)

TOPIC: Final = "Topic"
GROUP: Final = "Group"
CLUSTER: Final = "Cluster"
KINDS: Final = (TOPIC, GROUP, CLUSTER)
ANY: Final = "*"

ANONYMOUS: Final = "anonymous"  # unsigned requests; can have rules like a user

Network = IPv4Network | IPv6Network


class AccessError(Exception):
    """Users or rules cannot be used: what is wrong, where, and what to write instead."""


@dataclass(frozen=True, slots=True)
class Resource:
    """What a request wants to touch."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a user's policies."""

    allow: bool
    kind: str  # of the resource; ANY: whatever it is
    pattern: str  # a name, `prefix*` or `*`
    actions: frozenset[str]
    networks: tuple[Network, ...] = ()  # of the clients; none: from anywhere
    default: bool = False
    origin: str = ""  # the file, and the line in it

    def matches(self, resource: Resource, actions: Collection[str], address: str) -> bool:
        if self.kind not in (ANY, resource.kind) or self.actions.isdisjoint(actions):
            return False
        if self.pattern.endswith(ANY):
            if not resource.name.startswith(self.pattern[:-1]):
                return False
        elif self.pattern != resource.name:
            return False
        return not self.networks or is_within(address, self.networks)

    @property
    def rank(self) -> tuple[bool, int, int, bool]:
        """The highest of those that match decides."""
        exact = 0 if self.kind == ANY else 2 if self.pattern.endswith(ANY) else 3
        return not self.default, exact, len(self.pattern), not self.allow

    @property
    def resource(self) -> str:
        return ANY if self.kind == ANY else f"{self.kind}:{self.pattern}"

    @property
    def action_names(self) -> list[str]:
        return ["All"] if self.actions == ALL_ACTIONS else sorted(self.actions)

    def __str__(self) -> str:
        words = [
            *(("default",) if self.default else ()),
            "allow" if self.allow else "deny",
            self.resource,
            ",".join(self.action_names),
            *(("from", ",".join(map(str, self.networks))) if self.networks else ()),
        ]
        return " ".join(words)


def is_within(address: str, networks: Collection[Network]) -> bool:
    try:
        parsed: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return any(parsed in network for network in networks)


def parse_rule(text: str, origin: str = "") -> Rule:
    """`allow Topic:orders* Pub,Sub from 10.0.0.0/8`; AccessError says what is wrong."""
    words = text.split()
    default = words[:1] == ["default"]
    decision, resource, actions, *rest = [*words[default:], *[""] * 3][
        : max(3, len(words) - default)
    ]
    is_from = rest[:1] == ["from"] and len(rest) > 1
    if decision.lower() not in ("allow", "deny") or not actions or (rest and not is_from):
        raise AccessError(
            f"the policy {text!r} is not understood; write it as "
            "`allow Topic:orders* Pub,Sub from 10.0.0.0/8` (deny, Group:, Cluster:, All; "
            "`from` may be left out)"
        )
    return make_rule(
        decision.lower() == "allow",
        resource,
        actions.split(","),
        "".join(rest[1:]).split(","),
        default=default,
        origin=origin,
    )


def make_rule(
    allow: bool,
    resource: str,
    actions: Collection[str],
    networks: Collection[str] = (),
    *,
    default: bool = False,
    origin: str = "",
) -> Rule:
    """A rule of texts as the files and the wire have them."""
    kind, colon, pattern = resource.partition(":")
    kinds = {name.lower(): name for name in KINDS}
    if resource == ANY:
        kind, pattern = ANY, ANY
    elif not colon or kind.lower() not in kinds or not pattern or ANY in pattern[:-1]:
        raise AccessError(
            f"the resource {resource!r} is not understood; write Topic:, Group: or Cluster: and "
            "a name, a prefix with * behind it, or *"
        )
    else:
        kind = kinds[kind.lower()]
    return Rule(
        allow,
        kind,
        pattern,
        _actions(actions),
        tuple(_network(text.strip()) for text in networks if text.strip()),
        default,
        origin,
    )


def _actions(names: Collection[str]) -> frozenset[str]:
    known = {name.lower(): name for name in ACTIONS}
    found: set[str] = set()
    for name in (each.strip().lower() for each in names):
        if name == "all":
            return ALL_ACTIONS
        if name not in known:
            raise AccessError(f"there is no action {name!r}; there are {', '.join(ACTIONS)}, All")
        found.add(known[name])
    if not found:
        raise AccessError(f"no action is named; there are {', '.join(ACTIONS)}, All")
    return frozenset(found)


def _network(text: str) -> Network:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise AccessError(f"{text!r} is not an address or a network; write 10.0.0.0/8") from None


def nobody(address: str) -> bool:
    """An empty list of white addresses."""
    return False


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who signs requests."""

    name: str
    secrets: tuple[str, ...] = field(default=(), repr=False)  # a new one and, for a while, the old
    is_super: bool = False
    is_enabled: bool = True
    rules: tuple[Rule, ...] = ()
    lists_bind: bool = False  # a super user of plain_acl.yml with lists: they restrict its sends
    is_white: Callable[[str], bool] = nobody  # addresses from which it need not sign
    certificates: frozenset[str] = frozenset()  # a client that shows one of these is this user
    is_fresh: bool = False  # its requests must be such as cannot be replayed
    origin: str = ""  # the file, and the line in it
    digest: str = ""  # of the whole definition: equal on two brokers means the same user
    old_secret_until_ms: int = 0  # 0: there is no old secret


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether it is allowed, and the rule that decided."""

    allowed: bool
    reason: str  # for the client
    origin: str = ""  # of the rule: for the log and the operator


@dataclass(frozen=True, slots=True)
class Access:
    """All users at one time."""

    users: Mapping[str, User] = field(default_factory=dict)
    is_white: Callable[[str], bool] = nobody  # addresses from which anything is allowed
    by_certificate: Mapping[str, str] = field(default_factory=dict)  # its name -> the user's
    white: tuple[str, ...] = ()  # what `is_white` was made of


def decide(user: User, actions: Collection[str], resource: Resource, address: str) -> Verdict:
    """Whether the user may do one of `actions`, and the rule that decided."""
    if user.is_super and not (user.lists_bind and {PUB, SUB}.issuperset(actions)):
        return Verdict(True, f"{user.name} is a super user")
    matching = [rule for rule in user.rules if rule.matches(resource, actions, address)]
    if not matching:
        return Verdict(False, "no policy allows it")
    rule = max(matching, key=lambda each: each.rank)
    return Verdict(rule.allow, f"the policy `{rule}` decides", rule.origin)
