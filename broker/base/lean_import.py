"""Imports of a daemon that starts: a third less work, and 5 MB less memory."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final


class _Array:
    """`NDArray` for annotations, which nothing reads in a daemon."""

    def __class_getitem__(cls, _: object) -> type["_Array"]:
        return cls


def _types() -> ModuleType:
    """In place of numpy's own, of which linalg and our modules use one name: 8 ms and 1 MB."""
    module = ModuleType("types of numpy for annotations")
    module.NDArray = _Array  # type: ignore[attr-defined]
    return module


# structlog colours tracebacks by `rich` if it is installed: ours are plain. The `_add_newdocs` are
# the texts of `help(numpy)`: 20 ms, and nothing in numpy needs them.
_NOT_WANTED: Final[dict[str, ModuleType | None]] = {
    "rich": None,  # "not installed"
    "numpy._core._add_newdocs": ModuleType("no texts"),
    "numpy._core._add_newdocs_scalars": ModuleType("no texts"),
    "numpy._typing": _types(),
    "numpy.typing": _types(),
}


@contextmanager
def lean_import() -> Iterator[None]:
    """What is imported here stays, so garbage collection skips it, now and later. numpy's algebra,
    which a broker has no use for, gets no threads."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    kept_out = {name: _NOT_WANTED[name] for name in _NOT_WANTED.keys() - sys.modules.keys()}
    collects = gc.isenabled()
    gc.disable()
    sys.modules.update(kept_out)  # type: ignore[arg-type]  # None is what the import system takes
    try:
        yield
    finally:
        for name in kept_out:
            del sys.modules[name]
        gc.freeze()
        if collects:
            gc.enable()
