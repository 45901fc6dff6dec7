"""The compiled part of a clone is the one of its sources, or is not taken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aerobee.broker import compiled

SHOW = "from aerobee.broker import compiled; print(compiled.PATH)"


@pytest.mark.skipif(compiled.hot is None, reason="this installation is pure Python")
def test_a_compiled_part_of_older_sources_is_not_taken() -> None:
    place = Path(str(compiled.hot.__file__))  # type: ignore[union-attr]
    stamp = place.with_name(f"{place.name}.sources")
    made_of = stamp.read_text()
    assert made_of == compiled.digest_of_sources(place.parent)
    stamp.write_text("of other sources")
    try:
        run = subprocess.run(
            [sys.executable, "-c", SHOW], capture_output=True, text=True, check=True
        )
    finally:
        stamp.write_text(made_of)
    assert run.stdout == (
        "pure Python: the compiled part is of older sources, `make run` builds it\n"
    )
