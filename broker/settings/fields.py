"""How one setting is declared: a typed dataclass field with its key, unit, bounds and meaning."""

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field
from typing import Any, TypeVar, cast

T = TypeVar("T", bool, int, float, str)

_KEY_OF_METADATA = "aerobee"

EFFECT = "yes"
NO_EFFECT = "none here"
REFUSED = "refuses"


@dataclass(frozen=True, slots=True)
class About:
    """The metadata of one setting."""

    meaning: str
    key: str = ""  # as in the file; "" = the attribute's name in camelCase
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()  # spellings of older versions and other documents
    runtime: bool = False  # may change while the broker runs
    secret: bool = False  # never shown
    ours: bool = False  # Apache RocketMQ has no such key
    upstream: str | None = None  # RocketMQ's default, where ours differs
    why: str = ""  # why it differs
    check: Callable[[Any], str | None] | None = None  # returns what is wrong with the value


def setting(default: T, meaning: str, **about: Any) -> T:
    """A dataclass field with a default; typed as the value that it will hold."""
    known = About(meaning, **about)
    described: Any = field(
        default=default, metadata={_KEY_OF_METADATA: known}, repr=not known.secret
    )
    return described  # type: ignore[no-any-return]  # dataclass() puts the default in its place


def about(described: "Field[Any]") -> About:
    return cast(About, described.metadata[_KEY_OF_METADATA])


def default_of(described: "Field[Any]") -> bool | int | float | str:
    assert described.default is not MISSING
    return cast("bool | int | float | str", described.default)


def key_of(described: "Field[Any]") -> str:
    return about(described).key or camel_case(described.name)


def camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
