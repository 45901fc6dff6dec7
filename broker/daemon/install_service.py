"""`aerobee install-service`: the systemd unit and a first broker.conf, put where systemd looks."""

import os
import stat
import sys
from importlib.resources import files
from pathlib import Path

UNIT = "aerobee-broker.service"
_PACKAGED_COMMAND = "/opt/aerobee/venv/bin/aerobee"
# What ProtectHome=yes and PrivateTmp=yes hide.
_HIDDEN_FROM_SERVICES = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")


class InstallError(Exception):
    """The service cannot be installed; the text says why and what to do."""


def install_service(root: Path = Path("/"), command: Path | None = None) -> list[Path]:
    """Write the unit and, where there is none, the settings file below `root`.

    `command` is the `aerobee` that the unit starts: by default the one running now.
    """
    package = files("aerobee")
    needed = [] if command else [Path(str(package)).resolve()]  # elsewhere when it is editable
    command = command or Path(sys.executable).with_name("aerobee")
    if not command.exists():
        raise InstallError(
            f"{command} does not exist, so the service could not start it: install Aerobee into a "
            f"virtual environment and run that environment's `aerobee install-service`"
        )
    python = command.with_name("python").resolve()  # which runs the command
    for path in (command, command.resolve(), python, *needed):
        if problem := unseen(path):
            raise InstallError(
                f"{path} {problem}: install Aerobee elsewhere, for example, in a clone, "
                f"`/usr/bin/python3 -m venv /opt/aerobee/venv && /opt/aerobee/venv/bin/pip install "
                f".` (not -e), and run install-service from there"
            )
    unit_text = package.joinpath("systemd", UNIT).read_text()
    unit = root / "etc/systemd/system" / UNIT
    settings = root / "etc/aerobee/broker.conf"
    try:
        _write(unit, unit_text.replace(_PACKAGED_COMMAND, _word(command)))
        written = [unit]
        if not settings.exists():
            _write(settings, package.joinpath("conf", "broker.conf").read_text())
            written.append(settings)
    except PermissionError as error:
        raise InstallError(
            f"{error.filename} cannot be written by user {os.getuid()}: run it with sudo"
        ) from None
    return written


def unseen(path: Path) -> str:
    """Why the service, in its sandbox and as a user of its own, could not use this path."""
    for folder in _HIDDEN_FROM_SERVICES:
        if path.is_relative_to(folder):
            return f"lies under {folder}, which the service's sandbox hides"
    for parent in reversed(path.parents):
        if parent.exists() and not parent.stat().st_mode & stat.S_IXOTH:
            return f"lies under {parent}, which only its owner may enter, not the service's user"
    return ""


def _word(path: Path) -> str:
    """The path as one word of a unit file: systemd cuts at spaces and reads specifiers at %."""
    text = str(path).replace("%", "%%")
    return f'"{text}"' if " " in text else text


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o644)
