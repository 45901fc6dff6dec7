"""Root administers a store whose broker runs as another user."""

import os
from pathlib import Path

import pytest
from aerobee_command import aerobee

BROKERS_USER = 12345

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another user")


def owners(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_uid for path in folder.rglob("*")}


async def test_what_root_creates_in_a_store_belongs_to_the_stores_owner(tmp_path: Path) -> None:
    os.chown(tmp_path, BROKERS_USER, BROKERS_USER)
    await aerobee("user", "add", "root", "--super", "--store", f"{tmp_path}/store")
    made = owners(tmp_path)
    assert "store/config/access.json" in made
    assert set(made.values()) == {BROKERS_USER}
    assert (tmp_path / "store/config/access.json").stat().st_mode & 0o777 == 0o600


async def test_what_root_creates_in_its_own_store_stays_its_own(tmp_path: Path) -> None:
    await aerobee("user", "add", "root", "--super", "--store", f"{tmp_path}/store")
    assert set(owners(tmp_path).values()) == {0}
