"""The compiled part of the broker, if this installation has it: `hot`, or None.

It is built when the package is installed and a C compiler is there. Without it, or with
AEROBEE_PURE=1, the broker takes the same path in Python: every answer and every file is the same.
"""

import os
from types import ModuleType
from typing import Final

PURE: Final = "AEROBEE_PURE"


def _load() -> tuple[ModuleType | None, str]:
    if os.environ.get(PURE, "") not in ("", "0"):
        return None, f"pure Python, by {PURE}"
    try:
        from aerobee.broker.compiled import _hot
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        return None, "pure Python" if missing else f"pure Python: {error}"
    return _hot, "compiled"


hot, PATH = _load()  # PATH: which one is taken, for those who ask
