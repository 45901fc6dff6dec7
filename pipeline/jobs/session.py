"""The SparkSession of a job."""

import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from aerobee.pipeline.driver import SETTINGS


def open_session(
    name: str,
    master: str,
    *,
    config: Mapping[str, str] | None = None,
    retries: bool = False,
) -> Any:
    """A session in UTC whose workers run this same Python. `retries`: also a local one runs a task
    again whose worker died, as a cluster does."""
    if retries and re.fullmatch(r"local\[(\*|\d+)\]", master):
        master = f"{master[:-1]},4]"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "8",
        **SETTINGS,
    }
    settings |= config or {}
    builder = SparkSession.builder.master(master).appName(f"aerobee {name}")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
