"""The settings of one broker as typed attributes, and changing them while it runs."""

import itertools
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aerobee.broker.settings.access import AccessSettings
from aerobee.broker.settings.daemon import DaemonSettings
from aerobee.broker.settings.fields import About
from aerobee.broker.settings.known import (
    Known,
    Value,
    find_key,
    nearest_key,
    parse_value,
    text_of,
)
from aerobee.broker.settings.messages import MessageSettings
from aerobee.broker.settings.replication import ReplicationSettings
from aerobee.broker.settings.storage import StorageSettings

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_INT_64 = 1 << 63


class SettingsError(Exception):
    """A setting cannot be used: which one, where it was given, and what to write instead."""


class FixedSetting(SettingsError):
    """The setting is known, but a running broker does not change it."""


@dataclass(eq=False)
class Settings(
    DaemonSettings, ReplicationSettings, AccessSettings, MessageSettings, StorageSettings
):
    """Every setting with effect, in snake_case: listenPort is listen_port."""

    # Key -> text, those without effect too; not in the repr, as some are secrets.
    given: dict[str, str] = field(default_factory=dict, repr=False)
    sources: dict[str, str] = field(default_factory=dict)  # key -> where it was given
    folder: str = ""  # of the settings file; "": there is none
    warnings: list[str] = field(default_factory=list)
    listeners: list[Callable[[set[str]], None]] = field(default_factory=list)
    changes: int = 0
    changed_at_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """The delay of level 1, 2, ... in milliseconds."""
        levels = self.message_delay_level.split()
        return tuple(int(level[:-1]) * _SECONDS[level[-1]] * 1000 for level in levels)

    @property
    def fast_port(self) -> int:
        """Older producers and replicas use this one."""
        return self.listen_port - 2

    def value_of(self, known: Known) -> Value:
        """The value in force; of a key without effect, what was given."""
        if known.attribute:
            value: Value = getattr(self, known.attribute)
            return value
        text = self.given.get(known.key)
        return known.default if text is None else parse_value(known.type, text)

    def data_version(self) -> dict[str, int]:
        """As RocketMQ numbers the states of its configuration."""
        return {"counter": self.changes, "stateVersion": 0, "timestamp": self.changed_at_ms}

    def change(self, values: Mapping[str, str]) -> dict[str, tuple[Value, Value]]:
        """Change settings of the running broker, all or none; returns key -> (old, new)."""
        new: dict[Known, Value] = {}
        for key, text in values.items():
            known = require_key(key, "")
            new[known] = checked_value(known, key, text, "")
        changed = {
            known.key: (self.value_of(known), value)
            for known, value in new.items()
            if self.value_of(known) != value
        }
        for key in changed:
            known = require_key(key, "")
            if not known.attribute:
                raise FixedSetting(f"{key} has no effect here: {known.about.meaning}")
            if not known.about.runtime:
                raise FixedSetting(
                    f"{key} cannot change while the broker runs; "
                    "write it into the settings file and restart"
                )
        check_together(self, {known.attribute: value for known, value in new.items()})
        for known, value in new.items():
            if known.key in changed:
                setattr(self, known.attribute, value)
                self.given[known.key] = text_of(value)
        if changed:
            self.changes += 1
            self.changed_at_ms = time.time_ns() // 1_000_000
            for listener in self.listeners:
                listener(set(changed))
        return changed


def require_key(key: str, source: str) -> Known:
    known = find_key(key)
    if known is not None:
        return known
    near = nearest_key(key)
    hint = f"; did you mean {near}?" if near else "; `aerobee config` lists all settings"
    raise SettingsError(f"there is no setting {key}{_at(source)}{hint}")


def checked_value(known: Known, key: str, text: str, source: str) -> Value:
    """The value, typed and within its bounds."""
    try:
        value = parse_value(known.type, text.strip())
        problem = _problem(known.about, value)
    except ValueError as error:
        problem = str(error)
    if problem:
        raise SettingsError(f"{key}={known.shown(text)}{_at(source)} is not possible: {problem}")
    return value


def _problem(about: About, value: Value) -> str | None:
    if about.choices and value not in about.choices:
        return "it must be " + " or ".join(about.choices)
    if isinstance(value, int | float):
        if about.low is not None and value < about.low:
            return f"it must be at least {about.low}"
        if about.high is not None and value > about.high:
            return f"it must be at most {about.high}"
        if abs(value) >= _INT_64:
            return "it is too large"
    return about.check(value) if about.check else None


def _at(source: str) -> str:
    return f" ({source})" if source else ""


def check_together(settings: Settings, new: Mapping[str, Value] | None = None) -> None:
    """What no single setting can tell."""

    def get(name: str) -> Value:
        return (new or {}).get(name, getattr(settings, name))

    if get("listen_port") in (1, 2):
        raise SettingsError(
            f"listenPort={get('listen_port')} leaves no port for listenPort - 2; take another"
        )
    if get("namesrv_listen_port") in (get("listen_port"), settings.fast_port) and (
        settings.namesrv_listen_port > 0
    ):
        raise SettingsError(
            f"namesrvListenPort={settings.namesrv_listen_port} is one of the broker's own ports "
            f"{settings.listen_port} and {settings.fast_port}; take another"
        )
    if settings.enable_controller_mode and settings.etcd_endpoints:
        raise SettingsError(
            "etcdEndpoints and enableControllerMode both name who decides on the master: take one"
        )
    if settings.enable_controller_mode and not settings.controller_addr:
        raise SettingsError("enableControllerMode needs the controllers: controllerAddr=HOST:PORT")
    if settings.etcd_endpoints and new is None and settings.broker_id <= 0:
        raise SettingsError(
            f"etcdEndpoints needs a brokerId above 0 on every replica, the master too, not "
            f"{settings.broker_id}: each one has its own"
        )
    if settings.has_arbiter and settings.ha_listen_port < 0:
        raise SettingsError("failover needs a port for replicas: haListenPort is -1")
    if not settings.has_arbiter and int(get("min_in_sync_replicas")) > 1:
        raise SettingsError(
            "minInSyncReplicas needs etcdEndpoints or a controller: without them nobody keeps the "
            "in-sync set"
        )
    if settings.is_slave and settings.broker_id <= 0 and not settings.enable_controller_mode:
        raise SettingsError(
            f"brokerRole=SLAVE needs a brokerId above 0, not {settings.broker_id}: 0 is its master"
        )
    shares = [
        (key, get(name))
        for key, name in (
            ("diskMaxUsedSpaceRatio", "disk_max_used_space_ratio"),
            ("diskSpaceCleanForciblyRatio", "disk_space_clean_forcibly_ratio"),
            ("diskSpaceWarningLevelRatio", "disk_space_warning_level_ratio"),
        )
    ]
    for (lower, low), (higher, high) in itertools.pairwise(shares):
        if float(low) > float(high):
            raise SettingsError(f"{lower}={low} must not be above {higher}={high}")
    for key, name in (("brokerName", "broker_name"), ("brokerClusterName", "broker_cluster_name")):
        text = str(get(name))
        if text and not re.fullmatch(r"[A-Za-z0-9%|_-][A-Za-z0-9%|_.-]{0,126}", text):
            raise SettingsError(
                f"{key}={text} is not possible: use at most 127 letters, digits, - and _"
            )
