"""docs/lake.md as a new user follows it: every block is run, in order, from the installation on."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.pages import check_said, followed

# What a step must have printed, by a word of its command.
EXPECTED = {
    "cat orders.json": ['"amount"', '"required"', "from 500 messages; 1 are not JSON objects"],
    "--schema orders.json": ["500 rows", "1 rejected", "501 messages added"],
    "questions.py": ["coffee", "not an order at all", "JSON is malformed"],
    "dashboard.py": ["see dashboard.png"],
    "whole.py": ["|product|count|", "coffee"],
    "others.py": ["501"],
}


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_page_leads_from_topic_to_dashboard(tmp_path: Path) -> None:
    with followed("lake.md", tmp_path / "clone") as said:
        check_said(said, EXPECTED)
    assert (tmp_path / "clone/dashboard.png").stat().st_size > 1000
