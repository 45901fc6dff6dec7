"""The compiled part of the broker, if this installation has it: `hot`, or None.

It is built when the package is installed and a C compiler is there. Without it, or with
AEROBEE_PURE=1, the broker takes the same path in Python: every answer and every file is the same.
"""

import os
from importlib import import_module
from types import ModuleType
from typing import Final

PURE: Final = "AEROBEE_PURE"
_MODULE: Final = f"{__name__}._hot"


def _load() -> tuple[ModuleType | None, str]:
    if os.environ.get(PURE, "") not in ("", "0"):
        return None, f"pure Python, by {PURE}"
    try:
        return import_module(_MODULE), "compiled"
    except ImportError as error:  # it is not there, or of other sources
        return None, "pure Python" if error.name == _MODULE else f"pure Python: {error}"


hot, PATH = _load()  # PATH: which one is taken, for those who ask
