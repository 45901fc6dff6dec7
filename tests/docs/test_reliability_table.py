"""The table of the fault lab, and the program that writes it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reliability", ROOT / "bench/reliability.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reliability"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_a_row_is_replaced_and_stands_in_its_place(program: ModuleType, tmp_path: Path) -> None:
    table = tmp_path / "reliability.md"
    first, second = program.ROWS[0], program.ROWS[1]
    program.write(program.cells(second, "a | b", 61.4, 0), table)
    program.write(program.cells(first, "0 violations", 700, 0), table)
    program.write(program.cells(second, "0 failed", 2, 0), table)
    assert [measure for measure, _ in program.read(table)] == [first.measure, second.measure]
    lines = dict(program.read(table))
    assert "| 0 failed |" in lines[second.measure] and "| 12 min |" in lines[first.measure]


def test_a_failed_command_writes_a_row_that_says_so(program: ModuleType) -> None:
    assert program.cells(program.ROWS[0], "3 violations", 1, 2)[2].startswith("**FAILED** (2)")


def test_every_row_is_a_target_of_make(program: ModuleType) -> None:
    text = "".join(path.read_text() for path in (ROOT / "make").glob("*.mk"))
    for row in program.ROWS:
        assert f"\n{row.target.split()[0]}: " in text, row.name
        program.cells(row, "", 0, 0)  # every variable of the size is in the target
