"""The compiled part of the broker, if this installation has it: `hot`, or None.

It is built when the package is installed and a C compiler is there. Without it, or with
AEROBEE_PURE=1, the broker takes the same path in Python: every answer and every file is the same.
"""

import hashlib
import os
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

PURE: Final = "AEROBEE_PURE"
_MODULE: Final = f"{__name__}._hot"


def digest_of_sources(folder: Path) -> str:
    """What the compiled part was made of, or would be made of now."""
    sources = sorted(path for path in folder.iterdir() if path.suffix in (".pyx", ".pxi", ".h"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


def _is_of_these_sources(module: ModuleType) -> bool:
    """A clone may be newer than what was built in it; a wheel has its own."""
    place = Path(str(module.__file__))
    stamp = place.with_name(f"{place.name}.sources")
    return not stamp.exists() or stamp.read_text() == digest_of_sources(place.parent)


def _load() -> tuple[ModuleType | None, str]:
    if os.environ.get(PURE, "") not in ("", "0"):
        return None, f"pure Python, by {PURE}"
    try:
        module = import_module(_MODULE)
        if not _is_of_these_sources(module):
            return None, "pure Python: the compiled part is of older sources, `make run` builds it"
        return module, "compiled"
    except ImportError as error:  # it is not there, or of other sources
        return None, "pure Python" if error.name == _MODULE else f"pure Python: {error}"


hot, PATH = _load()  # PATH: which one is taken, for those who ask
