"""examples/lake_without_spark.py: Arrow, DuckDB and Polars over a store and a kept table."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs.pages import ROOT
from peers.aerobee_broker import AerobeeBroker


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_store_and_a_table_are_read_without_spark(tmp_path: Path) -> None:
    from aerobee.pipeline import arrow
    from aerobee.pipeline.jobs.table_tasks import layout_of
    from aerobee.pipeline.lake.data_files import table_schema, write_files
    from aerobee.pipeline.lake.model import Held
    from aerobee.pipeline.lake.opening import create_table
    from aerobee.sync import connect

    with AerobeeBroker(tmp_path / "broker") as broker:
        with connect(f"mq://{broker.namesrv}") as mq:
            for n in range(30):
                mq.send("orders", b"%d" % n, tag="paid" if n % 3 else "new")
        store = str(broker.store)
    table = create_table(str(tmp_path / "kept"), "delta", table_schema(("date",)), ("date",))
    files = write_files(arrow.read_store(store, topics=["orders"]), layout_of(table))
    table.append(files, Held(), {})
    words = [str(ROOT / "examples" / "lake_without_spark.py"), store, "orders", table.where]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "Arrow: 30 messages in orders" in done.stdout
    assert len(re.findall(r"paid.*20", done.stdout)) == 3  # DuckDB and Polars; DuckDB of the table
