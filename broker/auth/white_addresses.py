"""White addresses as plain_acl.yml writes them: from these nothing needs a signature.

One address, `*`, parts that are `*`, a range `1-9` or a choice `{1,2}`, several with commas, in
IPv4 and IPv6. Networks such as `10.0.0.0/8` are our extension.
"""

import re
from collections.abc import Callable
from ipaddress import IPv4Address, ip_address, ip_network

from aerobee.broker.auth.model import AccessError, nobody

_COMMAS = re.compile(r",(?![^{]*\})")
_PART = r"\*|{0}|{0}-{0}|\{{{0}(,{0})*\}}"
_NUMBERS = {10: "[0-9]{1,3}", 16: "[0-9a-f]{1,4}"}  # by base
_PARTS = {base: re.compile(_PART.format(number)) for base, number in _NUMBERS.items()}

Test = Callable[[str], bool]


def white_addresses(text: str) -> Test:
    """Whether an address is on the list."""
    texts = filter(None, (part.strip() for part in _COMMAS.split(text)))
    tests = [_one(part.lower()) for part in texts]
    if not tests:
        return nobody
    return lambda address: any(test(address) for test in tests)


def _one(text: str) -> Test:
    if text in ("*", "*.*.*.*", "*:*:*:*:*:*:*:*"):
        return lambda _address: True
    if "/" in text:
        return _network(text)
    base = 16 if ":" in text else 10
    parts = _groups(text) if base == 16 else text.split(".")
    if len(parts) != (8 if base == 16 else 4) or not all(map(_PARTS[base].fullmatch, parts)):
        raise AccessError(
            f"the white address {text!r} is not understood; write 10.1.2.3, 10.1.*.*, 10.1.2.1-9, "
            "10.1.2.{3,4} or *"
        )
    tests = [_part(part, base) for part in parts]

    def is_white(address: str) -> bool:
        numbers = _numbers(address)
        return len(numbers) == len(tests) and all(
            test(number) for test, number in zip(tests, numbers, strict=True)
        )

    return is_white


def _network(text: str) -> Test:
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        raise AccessError(f"the white address {text!r} is not a network") from None
    return lambda address: ip_address(address.partition("%")[0]) in network


def _groups(text: str) -> list[str]:
    """The eight groups of an IPv6 address, those behind :: filled in."""
    before, gap, after = text.partition("::")
    first = before.split(":") if before else []
    last = after.split(":") if after else []
    return [*first, *["0"] * (8 - len(first) - len(last)), *last] if gap else first


def _part(text: str, base: int) -> Callable[[int], bool]:
    if text == "*":
        return lambda _number: True
    if "-" in text:
        low, high = (int(end, base) for end in text.split("-"))
        return lambda number: low <= number <= high
    allowed = frozenset(int(one, base) for one in text.strip("{}").split(","))
    return allowed.__contains__


def _numbers(address: str) -> tuple[int, ...]:
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return ()
    if isinstance(parsed, IPv4Address):
        return tuple(parsed.packed)
    return tuple(int(group, 16) for group in parsed.exploded.split(":"))
