"""Kept tables over kills of driver, worker and broker: `make test-table-kills` does a hundred."""

from __future__ import annotations

from pathlib import Path

import pytest
from spark.table_kills import run


@pytest.mark.timeout(600)
def test_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    killed, rows = run(tmp_path, kills=2, others=1, seed=7)
    assert killed == (2, 1)
    assert len(set(rows.values())) == 1 and rows["parquet"] > 0
