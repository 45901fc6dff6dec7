"""The store's share of the settings."""

from dataclasses import fields
from typing import Any

from aerobee.broker.settings.typed import Settings
from aerobee.broker.store.settings import StoreSettings

# Where the store's name is not the key's, and what is no setting.
_OTHER_NAMES = {"warm_mapped_file_enable": "warm_maped_file_enable"}
_FIXED = {"broker_role": "ASYNC_MASTER"}


def store_settings(settings: Settings) -> StoreSettings:
    """The store knows nothing of keys and files: it takes its values from here."""
    values: dict[str, Any] = {}
    for wanted in fields(StoreSettings):
        name = _OTHER_NAMES.get(wanted.name, wanted.name)
        if wanted.name in _FIXED:
            values[wanted.name] = _FIXED[wanted.name]
        elif hasattr(settings, name):
            values[wanted.name] = getattr(settings, name)
    return StoreSettings(**values)
