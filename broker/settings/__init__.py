"""Settings: RocketMQ's broker.conf, typed and checked. See docs/settings.md."""

from aerobee.broker.settings.load import load_settings
from aerobee.broker.settings.report import SettingRow, render_settings, setting_rows
from aerobee.broker.settings.typed import FixedSetting, Settings, SettingsError

__all__ = [
    "FixedSetting",
    "SettingRow",
    "Settings",
    "SettingsError",
    "load_settings",
    "render_settings",
    "setting_rows",
]
