"""The ledger of known bugs, docs/known-bugs.md, names tests that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEDGER = ROOT / "docs" / "known-bugs.md"


def test_every_test_that_the_ledger_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", LEDGER.read_text())
    assert len(named) > 60
    missing = [f"{path}::{name}" for path, name in named if name not in names_in(path)]
    assert missing == []


def test_every_bug_that_has_a_test_of_its_own_is_in_the_ledger() -> None:
    text = LEDGER.read_text()
    told = {
        f"{path.relative_to(ROOT)}::{name}"
        for path in (ROOT / "tests").rglob("test_rmq_*.py")
        for name in names_in(str(path.relative_to(ROOT)))
        if name.startswith("test_rmq_")
    }
    assert [each for each in sorted(told) if f"`{each}`" not in text] == []


def names_in(path: str) -> set[str]:
    file = ROOT / path
    tree = ast.parse(file.read_text()) if file.exists() else ast.Module([], [])
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, functions)}
