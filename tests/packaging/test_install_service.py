"""`aerobee install-service`: the unit starts the command that wrote it, wherever that lies."""

import shlex
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from peers.tools import open_to_all

from aerobee.broker.daemon import install_service as module
from aerobee.broker.daemon.install_service import InstallError, install_service, unseen


@pytest.mark.parametrize("folder", ["venv", "my apps", "100%h"])
def test_the_unit_starts_the_command_whatever_its_path_holds(
    tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "unseen", lambda _: "")  # a test's folder is hidden from services
    command = tmp_path / folder / "bin" / "aerobee"
    command.parent.mkdir(parents=True)
    command.touch()
    unit, _settings = install_service(tmp_path / "root", command)
    lines = unit.read_text().splitlines()
    start = next(line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart="))
    assert "%%" in start or "%" not in start  # a single one begins a specifier of systemd
    words = [word.replace("%%", "%") for word in shlex.split(start)]
    assert words == [str(command), "broker", "--config", "/etc/aerobee/broker.conf"]


def test_a_python_that_the_sandbox_hides_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual environment of uv or pyenv leads to an interpreter under somebody's home."""
    command = tmp_path / "venv" / "bin" / "aerobee"
    command.parent.mkdir(parents=True)
    command.touch()
    command.with_name("python").symlink_to("/home/somebody/.pyenv/versions/3.12/bin/python3")
    monkeypatch.setattr(module, "_HIDDEN_FROM_SERVICES", ("/home",))
    open_to_all(tmp_path)
    with pytest.raises(InstallError, match=r"/home/somebody/.* lies under /home"):
        install_service(tmp_path / "root", command)
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("folder", ["/tmp/venv", "/var/tmp/venv", "/root/venv", "/home/me/venv"])
def test_a_folder_that_the_sandbox_hides_is_unseen(folder: str) -> None:
    assert "hides" in unseen(Path(folder) / "bin" / "aerobee")


def test_a_folder_that_others_may_not_enter_is_unseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HIDDEN_FROM_SERVICES", ())
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    assert "only its owner may enter" in unseen(closed / "bin" / "aerobee")


def test_what_everybody_sees_is_seen() -> None:
    assert unseen(Path("/usr/bin/env")) == ""


def test_a_command_that_leads_into_a_hidden_folder_is_refused(tmp_path: Path) -> None:
    """A link in /usr/local/bin to an environment in a home."""
    command = tmp_path / "aerobee"
    command.touch()
    with pytest.raises(InstallError, match=r"lies under .*, which the service's sandbox hides"):
        install_service(tmp_path / "root", command)


def test_an_editable_install_of_a_hidden_clone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment is where it should be, its code is not."""
    clone = Path(str(files("aerobee"))).resolve()
    monkeypatch.setattr(module, "_HIDDEN_FROM_SERVICES", (str(clone),))
    monkeypatch.setattr(sys, "executable", "/usr/bin/env")  # any folder that is seen
    monkeypatch.setattr(Path, "exists", lambda _: True)
    with pytest.raises(InstallError, match="not -e"):
        install_service(tmp_path / "root")
    monkeypatch.undo()
    assert not (tmp_path / "root").exists()
