"""docs/where-spark-runs.md, block by block: local, spark-submit, standalone cluster, Connect."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.pages import check_said, followed
from peers.tools import free_port

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
    ports = {"7077": str(free_port()), "15002": str(free_port())}
    with followed("where-spark-runs.md", tmp_path / "clone", ports) as said:
        check_said(said, EXPECTED)
