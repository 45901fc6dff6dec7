"""`aerobee install-service`: the unit starts the command that wrote it, wherever that lies."""

import shlex
from pathlib import Path

import pytest

from aerobee.broker.install_service import InstallError, install_service


@pytest.mark.parametrize("folder", ["venv", "my apps", "100%h"])
def test_the_unit_starts_the_command_whatever_its_path_holds(tmp_path: Path, folder: str) -> None:
    command = tmp_path / folder / "bin" / "aerobee"
    command.parent.mkdir(parents=True)
    command.touch()
    unit, _settings = install_service(tmp_path / "root", command)
    lines = unit.read_text().splitlines()
    start = next(line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart="))
    assert "%%" in start or "%" not in start  # a single one begins a specifier of systemd
    words = [word.replace("%%", "%") for word in shlex.split(start)]
    assert words == [str(command), "broker", "--config", "/etc/aerobee/broker.conf"]


def test_a_python_that_the_sandbox_hides_is_refused(tmp_path: Path) -> None:
    """A virtual environment of uv or pyenv leads to an interpreter under somebody's home."""
    command = tmp_path / "venv" / "bin" / "aerobee"
    command.parent.mkdir(parents=True)
    command.touch()
    command.with_name("python").symlink_to("/home/somebody/.pyenv/versions/3.12/bin/python3")
    with pytest.raises(InstallError, match=r"/home/somebody/.* lies under /home"):
        install_service(tmp_path / "root", command)
    assert not (tmp_path / "root").exists()
