"""Files that killed runs of Spark's own Parquet sink left in an archive: no batch names them, some
are empty. They are removed once, when the archive becomes a table."""

import json
from pathlib import Path
from typing import Final

MANIFEST: Final = "_spark_metadata"


def remove_leftovers(folder: Path) -> list[Path]:
    """Removes data files that no batch committed."""
    kept = committed_by_spark(folder)
    removed = []
    for file in folder.glob("topic=*/date=*/part-*.parquet"):
        if file.name not in kept:
            file.unlink()
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
            removed.append(file)
    return removed


def committed_by_spark(folder: Path) -> set[str]:
    """The names of the files that the archive's batches hold; each name has a UUID in it."""
    names = set()
    for batch in (folder / MANIFEST).glob("[0-9]*"):
        for line in batch.read_text().splitlines()[1:]:  # the first is the version
            names.add(json.loads(line)["path"].rpartition("/")[2])
    return names
