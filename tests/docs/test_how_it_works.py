"""docs/how-it-works.md names files and functions that are there, chapter by chapter."""

import re
from pathlib import Path

import pytest
from code_names import names_in

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/how-it-works.md").read_text()
NAMED = re.compile(r"`((?:\w+/)+\w+\.py)`((?:,? `[A-Z_a-z]\w*(?:\.\w+)?`)*)")
CHAPTERS = (
    "Commitlog",
    "Mapped files",
    "Consume queue",
    "Index",
    "Flush",
    "Checkpoint and abort",
    "Recovery",
    "Clean-up",
    "Replication",
)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_names_files_and_functions_that_are_there(chapter: str) -> None:
    section = TEXT.partition(f"\n## {chapter}\n")[2].partition("\n## ")[0]
    named = NAMED.findall(section)
    assert len(named) >= 2
    missing = {
        path: wrong
        for path, names in named
        if (wrong := set(re.findall(r"`([^`]+)`", names)) - names_in(path))
    }
    assert missing == {}


def test_every_file_of_the_page_is_there() -> None:
    paths = {path for path, _ in NAMED.findall(TEXT)}
    assert len(paths) > 40
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []
