"""Changelog entries in files of their own: checked, and folded into the changelog at a release."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOG = """# Changelog

## 0.2.0 (unreleased)

### Fixed

- old fix

### Added

- old

## 0.1.0

- first
"""


@pytest.fixture(scope="module")
def changes() -> ModuleType:
    spec = importlib.util.spec_from_file_location("changes", ROOT / "make/changes.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_fragments_come_first_under_their_headings(changes: ModuleType) -> None:
    fragments = {"b.fixed.md": "- b\n", "a.fixed.md": "- a\n", "c.added.md": "- c\n- d\n"}
    assert changes.problems(LOG, fragments) == []
    found = changes.folded(LOG, fragments)
    assert (
        "### Fixed\n\n- a\n- b\n- old fix\n" in found and "### Added\n\n- c\n- d\n- old\n" in found
    )


@pytest.mark.parametrize(
    ("fragments", "said"),
    [
        ({"a.md": "- a"}, "NAME.KIND.md"),
        ({"a.mended.md": "- a"}, "KIND one of fixed"),
        ({"a.added.md": "a"}, "begins with '- '"),
    ],
)
def test_a_fragment_that_could_not_be_folded_is_named(
    changes: ModuleType, fragments: dict[str, str], said: str
) -> None:
    [problem] = changes.problems(LOG, fragments)
    assert said in problem and next(iter(fragments)) in problem


def test_a_heading_that_the_section_lacks_is_added_to_it(changes: ModuleType) -> None:
    found = changes.folded(LOG, {"c.changed.md": "- c\n"})
    assert "- old\n\n### Changed\n\n- c\n\n## 0.1.0\n\n- first\n" in found


def test_no_entry_goes_into_a_section_that_is_released(changes: ModuleType) -> None:
    released = LOG.replace("(unreleased)", "(2026-01-31)")
    found = changes.folded(released, {"a.fixed.md": "- a\n"})
    section = "## Unreleased\n\n### Fixed\n\n- a\n\n"
    assert found == released.replace("## 0.2.0", f"{section}## 0.2.0")


def test_an_entry_outside_of_the_headings_is_named(changes: ModuleType) -> None:
    [problem] = changes.problems(LOG.replace("### Fixed\n\n", "", 1), {})
    assert "'- old fix' is under no heading" in problem
