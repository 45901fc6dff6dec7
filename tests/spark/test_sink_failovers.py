"""The exactly-once sink over killed masters: `make test-sink-failovers` does twenty."""

from __future__ import annotations

from pathlib import Path

import pytest
from spark.sink_failovers import run


@pytest.mark.etcd
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_stream_continues_over_killed_masters_and_every_row_comes_once(tmp_path: Path) -> None:
    rows, stops = run(tmp_path, kills=2, seed=7)
    assert rows > 0 and len(stops) == 2
