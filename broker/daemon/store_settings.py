"""The store's share of the settings."""

from dataclasses import fields
from typing import Any

from aerobee.broker.settings.typed import Settings
from aerobee.broker.store.settings import StoreSettings

_DISK_RATIOS = (
    "diskMaxUsedSpaceRatio",
    "diskSpaceCleanForciblyRatio",
    "diskSpaceWarningLevelRatio",
)


def store_settings(settings: Settings) -> StoreSettings:
    """The store's settings, taken from the broker's: the store knows no keys or settings files."""
    values: dict[str, Any] = {}
    for wanted in fields(StoreSettings):
        name = wanted.name
        if hasattr(settings, name):
            values[name] = getattr(settings, name)
    if "diskReservedBytes" not in settings.given and settings.given.keys() & set(_DISK_RATIOS):
        values["disk_reserved_bytes"] = 0  # a ratio that was set acts alone
    return StoreSettings(**values)
