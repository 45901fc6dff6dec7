"""All known keys: with effect, without, and those that refuse to start."""

import difflib
from collections.abc import Iterator
from dataclasses import Field, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from aerobee.broker.settings.access import AccessSettings
from aerobee.broker.settings.daemon import DaemonSettings
from aerobee.broker.settings.fields import EFFECT, NO_EFFECT, REFUSED, About, about, default_of
from aerobee.broker.settings.fields import key_of as key_of_field
from aerobee.broker.settings.messages import MessageSettings
from aerobee.broker.settings.replication import ReplicationSettings
from aerobee.broker.settings.storage import StorageSettings

Value = bool | int | float | str

# Key, type, allowed value, and what another value would promise that we do not have. Any other
# value refuses the start: a broker that only looks safe is worse than none.
REFUSED_KEYS: tuple[tuple[str, type, Value, str], ...] = (
    ("totalReplicas", int, 1, "the set of replicas is kept by etcdEndpoints or controllerAddr"),
    (
        "enableControllerInNamesrv",
        bool,
        False,
        "our name service is not a controller: etcdEndpoints",
    ),
    ("enableDLegerCommitLog", bool, False, "the DLedger log is another format"),
    ("enableSlaveActingMaster", bool, False, "slaves that act as masters are not there"),
    ("enableRemoteEscape", bool, False, "slaves that act as masters are not there"),
    ("supportActingMaster", bool, False, "slaves that act as masters are not there"),
    ("storeType", str, "default", "RocksDB is another format"),
    ("timerRocksDBEnable", bool, False, "RocksDB is another format"),
    ("transRocksDBEnable", bool, False, "RocksDB is another format"),
    ("indexRocksDBEnable", bool, False, "RocksDB is another format"),
    ("rocksdbCQDoubleWriteEnable", bool, False, "RocksDB is another format"),
    ("configManagerVersion", str, "v1", "v2 keeps the configuration in RocksDB, another format"),
    ("useSingleRocksDBForAllConfigs", bool, False, "RocksDB is another format"),
    ("popConsumerKVServiceInit", bool, False, "POP and its RocksDB tables are not there yet"),
    ("popConsumerKVServiceEnable", bool, False, "POP and its RocksDB tables are not there yet"),
    ("enableLmq", bool, False, "light queues are not there yet"),
    ("enableMultiDispatch", bool, False, "light queues are not there yet"),
    ("forceVerifyPropCRC", bool, False, "records without the checksum are always read"),
    ("messageStorePlugIn", str, "", "store plug-ins such as tiered storage are not there yet"),
    ("readOnlyCommitLogStorePaths", str, "", "a log in several folders is not there yet"),
)

# Keys without effect whose value is a password or a token: never shown.
SECRET_KEYS: frozenset[str] = frozenset({"metricsGrpcExporterHeader", "socksProxyConfig"})
HIDDEN = "******"

# Other spellings, of RocketMQ's getters and setters or of older versions.
_OTHER_ALIASES = {
    "scanAvailableNameSrv": "isScanAvailableNameSrv",
    "inBrokerContainer": "isInBrokerContainer",
    "warmMappedFileEnable": "warmMapedFileEnable",
}

_TYPES: dict[str, type] = {"bool": bool, "int": int, "float": float, "str": str}


@dataclass(frozen=True, slots=True)
class Known:
    """One key, with or without effect."""

    key: str
    type: type
    default: Value
    effect: str
    about: About
    attribute: str = ""  # of Settings; "" for a key without effect

    def shown(self, value: Value) -> str:
        """The value as answers, reports, logs and errors may show it."""
        is_given = value != "" and value != self.default
        is_secret = self.about.secret or self.key in SECRET_KEYS
        return HIDDEN if is_secret and is_given else text_of(value)


def effective_fields() -> Iterator["Field[Any]"]:
    for group in (
        DaemonSettings,
        ReplicationSettings,
        AccessSettings,
        MessageSettings,
        StorageSettings,
    ):
        yield from fields(group)


@cache
def known_keys() -> dict[str, Known]:
    """By key, in the order in which they are declared."""
    table: dict[str, Known] = {}
    for described in effective_fields():
        key, default = key_of_field(described), default_of(described)
        table[key] = Known(key, type(default), default, EFFECT, about(described), described.name)
    for key, kind, default, promise in REFUSED_KEYS:
        table[key] = Known(key, kind, default, REFUSED, About(promise))
    for key, kind, default, meaning in _rows_without_effect():
        table[key] = Known(key, kind, default, NO_EFFECT, About(meaning))
    return table


@cache
def aliases() -> dict[str, str]:
    """Other spelling -> key."""
    found = dict(_OTHER_ALIASES)
    for key, known in known_keys().items():
        found.update(dict.fromkeys(known.about.aliases, key))
    return found


def find_key(key: str) -> Known | None:
    return known_keys().get(aliases().get(key, key))


def nearest_key(key: str) -> str | None:
    """The known key that a mistyped one most likely means."""
    spellings = {name.lower(): name for name in (*aliases(), *known_keys())}
    near = difflib.get_close_matches(key.lower(), spellings, n=1, cutoff=0.6)
    return spellings[near[0]] if near else None


def _rows_without_effect() -> Iterator[tuple[str, type, Value, str]]:
    text = Path(__file__).with_name("without_effect.txt").read_text()
    meaning = ""
    for line in text.splitlines():
        if line.startswith("["):
            meaning = line.strip("[]")
        elif line and not line.startswith("#"):
            key, kind, default = (*line.split(" ", 2), "")[:3]
            yield key, _TYPES[kind], parse_value(_TYPES[kind], default), meaning


def parse_value(kind: type, text: str) -> Value:
    """The typed value of a text; ValueError says what was expected."""
    if kind is bool:
        value = {"true": True, "false": False}.get(text.strip().lower())
        if value is None:
            raise ValueError("it must be true or false")
        return value
    if kind is str:
        return text
    try:
        return int(text) if kind is int else float(text)
    except ValueError:
        raise ValueError(
            "it must be a whole number" if kind is int else "it must be a number"
        ) from None


def text_of(value: Value) -> str:
    """As a settings file writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
