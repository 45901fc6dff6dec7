"""docs/where-spark-runs.md, block by block: local, spark-submit, standalone cluster, Connect."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from docs.pages import check_said, followed
from peers.aerobee_broker import AerobeeBroker
from peers.tools import free_port

CONNECT = Path(sys.prefix) / "connect"  # what pyspark[connect] needs; made by the Makefile
EXPECTED = {
    "python local.py": ["|tags|local|", "|paid|  200|"],
    "--master 'local[2]' submitted.py": ["|paid|      200|"],
    "pipeline table orders": ["300 messages added", "|paid|      200|"],
    "catalog-jar": ["spark.sql.catalog.aerobee=aerobee.TopicCatalog"],
    "python connected.py": ["|paid|      200|", "200 paid"],
}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_page_about_where_spark_runs(tmp_path: Path) -> None:
    assert CONNECT.is_dir(), "run it by `make test-spark-full`, which installs Connect's client"
    home = Path(sys.prefix) / "lib"
    (spark_home,) = home.glob("python*/site-packages/pyspark")
    more = {
        "SPARK_HOME": str(spark_home),
        "PYSPARK_PYTHON": sys.executable,  # as exported by an earlier block
        "PYTHONPATH": os.pathsep.join([str(CONNECT), os.environ.get("PYTHONPATH", "")]),
    }
    with AerobeeBroker(tmp_path / "broker") as broker:
        instead = {
            "127.0.0.1:9876": broker.namesrv,
            "7077": str(free_port()),
            "15002": str(free_port()),
        }
        with followed("where-spark-runs.md", tmp_path, instead, more) as said:
            check_said(said, EXPECTED)
