"""Avoids costs of each call in Spark's Python processes, which serve one call after another."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from os.path import basename
from typing import Final
from zipimport import zipimporter

_SPARKS_OWN: Final = ("pyspark", "py4j", "spark-core")  # a jar is a zip file, too


@contextmanager
def reused_process() -> Iterator[None]:
    """Around what Spark calls. Between two calls PySpark searches all that was imported for
    garbage, and reads the directories of the zip files on the path again, in Python: 0.1 s of CPU,
    most of a small task. What was imported stays anyway, and Spark's own zip files stay as they
    are."""
    try:
        yield
    finally:
        if _is_sparks():
            _freeze_once()
            for path, finder in list(sys.path_importer_cache.items()):
                if isinstance(finder, zipimporter) and basename(finder.archive).startswith(
                    _SPARKS_OWN
                ):
                    del sys.path_importer_cache[path]  # recreated from zipimport's own cache


@cache
def _freeze_once() -> None:
    gc.freeze()  # `cache`: gc.get_freeze_count() would walk all frozen objects, 2 ms


def _is_sparks() -> bool:
    """Whether this process is a worker, not a user's program."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
