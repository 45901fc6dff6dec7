"""Selects the hot path: the compiled one if it is available."""

from typing import Final

from aerobee.broker.compiled import hot
from aerobee.broker.fast.compiled_path import CompiledPath
from aerobee.broker.fast.hot_path import HotPath

HotFeed: Final = CompiledPath if hot is not None else HotPath
