"""Kept tables beside Spark's own Delta and Iceberg, which have releases for Spark 4.1 only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from peers.aerobee_broker import AerobeeBroker
from spark.helpers import create_topic, numbers, produce, start_script
from spark.lake_readers import IS_41

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not IS_41, reason="no release for this Spark"),
]


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_sparks_own_sources_open_a_kept_table_and_their_archives_are_taken_over(
    broker: AerobeeBroker, tmp_path: Path, table_format: str
) -> None:
    """In a process of its own: the format's jars come with the session."""
    topic = f"jar-{table_format}"
    create_topic(broker.broker, topic, 2)
    produce(broker.namesrv, topic, numbers(200))
    settings = {"namesrv": broker.namesrv, "topic": topic, "format": table_format}
    script = Path(__file__).with_name("formats_driver.py")
    driver = start_script(script, settings | {"folder": str(tmp_path)})
    output, _ = driver.communicate(timeout=500)
    assert driver.returncode == 0, output[-4000:]
    # A worker of Spark may still print something when the session has ended.
    (said,) = (line for line in output.splitlines() if line.startswith("{"))
    found = json.loads(said)
    assert found["kept"] == [200, 200]
    assert found["added to the archive of before"] == 30
    assert found["archive"] == [230, 230]
