"""docs/architecture.md is accurate: its paths, functions, layers and threads exist."""

import re
import tomllib
from pathlib import Path

import pytest
from code_names import names_in

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/architecture.md").read_text()
PATH = re.compile(r"`((?:[\w.]+/)+(?:\w+\.py)?)`")
STEP = re.compile(r"^\d+\. `([^`]+)`([^:]*):", re.MULTILINE)
WALKS = ("A send", "A pull that waits", "A recovery", "A Spark read")


def test_every_path_leads_to_a_file_or_folder() -> None:
    paths = set(PATH.findall(TEXT))
    assert len(paths) > 100
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


@pytest.mark.parametrize("walk", WALKS)
def test_every_step_of_a_walk_names_functions_of_its_file(walk: str) -> None:
    section = re.split(r"^##+ ", TEXT.partition(f"### {walk}\n")[2], flags=re.MULTILINE)[0]
    steps = STEP.findall(section)
    assert len(steps) == len(re.findall(r"^\d+\. ", section, re.MULTILINE)) >= 10
    missing = {
        path: wrong
        for path, named in steps
        if (wrong := set(re.findall(r"`([^`]+)`", named)) - names_in(path))
    }
    assert missing == {}


def test_the_rooms_stand_in_the_order_of_the_contracts() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    for name, folder, begin in (
        ("broker", "broker", "**The broker**"),
        ("store", "broker/store", "**The store**"),
    ):
        [layers] = [one["layers"] for one in contracts["contracts"] if one["name"] == name]
        order = [room.strip("() ") for line in layers for room in line.split("|")]
        table = TEXT.partition(begin)[2].partition("\n\n")[2].partition("\n\n")[0]
        rows = [row.rsplit(" | ", 1)[0] for row in table.splitlines()[2:]]
        described = [
            room
            for row in rows
            for room in re.findall(rf"`{folder}/(\w+)(?:/|\.py)`", row.replace("\\|", ""))
        ]
        assert len(described) > 6
        assert described == [room for room in order if room in described]


def test_every_thread_of_the_broker_is_reported() -> None:
    started = set()
    for file in (ROOT / "broker").rglob("*.py"):
        started |= set(re.findall(r'"(aerobee-[a-z-]+)"', file.read_text()))
    described = set(re.findall(r"^\| `(aerobee-[a-z-]+)`", TEXT, re.MULTILINE))
    assert started == described
