"""Files of a Parquet archive that a killed run left behind: no batch names them, some are empty.

Spark's own readers go by `_spark_metadata`, which lists what was committed; others take every file.
"""

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from aerobee.pipeline.errors import OptionError

LOCK: Final = "_lock"
MANIFEST: Final = "_spark_metadata"
SPARED_SECONDS: Final = 5.0  # a killed run's JVM may live on for a moment and commit its batch


@contextmanager
def cleaned(folder: Path) -> Iterator[None]:
    """The folder for one run alone, without leftovers when it begins and when it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OptionError(f"another archive is running on {folder}") from None
        began = time.time()
        remove_leftovers(folder, before=began - SPARED_SECONDS)
        try:
            yield
        finally:
            remove_leftovers(folder, before=began)


def remove_leftovers(folder: Path, before: float) -> list[Path]:
    """Removes data files that no batch committed, as far as they are older."""
    kept = committed(folder)
    removed = []
    for file in folder.glob("topic=*/date=*/part-*.parquet"):
        if file.name not in kept and file.stat().st_mtime < before:
            file.unlink()
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
            removed.append(file)
    return removed


def committed(folder: Path) -> set[str]:
    """The names of the files that the archive's batches hold; each name has a UUID in it."""
    names = set()
    for batch in (folder / MANIFEST).glob("[0-9]*"):
        for line in batch.read_text().splitlines()[1:]:  # the first is the version
            names.add(json.loads(line)["path"].rpartition("/")[2])
    return names
