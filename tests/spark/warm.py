"""A Spark that starts in a fraction of the time, for drivers that live for seconds.

Most of a start is work that is the same each time. The JVM takes its classes from an archive that
an earlier one left, and nothing is compiled for a second use that never comes. PySpark is imported
as installed: from the zip file that Spark puts on the path, each of a driver's ten Python processes
would compile it again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pyspark
from spark.helpers import session_config

FOLDER = Path(sys.prefix) / f"warm-{pyspark.__version__}"
HOME = FOLDER / "home"
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def warm_home() -> str:
    """Spark as it is installed, but without its zip files of Python."""
    HOME.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars"):
        if not (HOME / name).exists():
            (HOME / name).symlink_to(Path(pyspark.__file__).with_name(name))
    return str(HOME)


def warm_config(kind: str, make: Callable[[dict[str, str]], object]) -> dict[str, str]:
    """The settings of a driver of this kind. The first time `make` runs one to its end, with
    settings by which it leaves the archive."""
    archive = FOLDER / kind
    if not archive.exists():
        fresh = archive.with_suffix(f".{os.getpid()}")
        make(_config(f"-XX:ArchiveClassesAtExit={fresh}"))
        fresh.replace(archive)
    return _config(f"-XX:SharedArchiveFile={archive}")


def _config(option: str) -> dict[str, str]:
    options = session_config()["spark.driver.extraJavaOptions"]
    return INTERPRETED | {"spark.driver.extraJavaOptions": f"{options} -Xshare:auto {option}"}
