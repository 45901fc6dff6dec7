"""The compiled part of the broker, if this installation has it: `hot`, or None.

It is built when the package is installed and a C compiler is available. Without it, or with
AEROBEE_PURE=1, the broker runs the same path in Python: all answers and files are the same.
"""

import hashlib
import os
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

PURE: Final = "AEROBEE_PURE"
_MODULE: Final = f"{__name__}._hot"


def digest_of_sources(folder: Path) -> str:
    """A digest of the sources that the compiled part is built from."""
    sources = sorted(path for path in folder.iterdir() if path.suffix in (".pyx", ".pxi", ".h"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


def _is_of_these_sources(module: ModuleType) -> bool:
    """Whether the module matches its sources: a clone may be newer than its build."""
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
    except ImportError as error:  # not built, or from other sources
        return None, "pure Python" if error.name == _MODULE else f"pure Python: {error}"


hot, PATH = _load()  # PATH: which one runs, for logs and status


def compiled() -> Any:
    """`hot`, for code that runs only where it is there."""
    assert hot is not None, "this installation has no compiled part"
    return hot
