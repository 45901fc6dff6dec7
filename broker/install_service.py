"""`aerobee install-service`: the systemd unit and a first broker.conf, put where systemd looks."""

import os
import sys
from importlib.resources import files
from pathlib import Path

UNIT = "aerobee-broker.service"
_PACKAGED_COMMAND = "/opt/aerobee/venv/bin/aerobee"
_HIDDEN_FROM_SERVICES = ("home", "root", "run/user")  # what ProtectHome=yes hides


class InstallError(Exception):
    """The service cannot be installed; the text says why and what to do."""


def install_service(root: Path = Path("/"), command: Path | None = None) -> list[Path]:
    """Write the unit and, where there is none, the settings file below `root`.

    `command` is the `aerobee` that the unit starts: by default the one running now.
    """
    command = command or Path(sys.executable).with_name("aerobee")
    if not command.exists():
        raise InstallError(
            f"{command} does not exist, so the service could not start it: install Aerobee into a "
            f"virtual environment and run that environment's `aerobee install-service`"
        )
    python = command.with_name("python").resolve()  # which runs the command
    for folder in _HIDDEN_FROM_SERVICES:
        for path in (command, python):
            if path.is_relative_to(Path("/") / folder):
                raise InstallError(
                    f"{path} lies under /{folder}, which the service's sandbox hides: install "
                    f"Aerobee elsewhere, for example, in a clone, `/usr/bin/python3 -m venv "
                    f"/opt/aerobee/venv && /opt/aerobee/venv/bin/pip install .`, and run "
                    f"install-service from there"
                )
    package = files("aerobee")
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


def _word(path: Path) -> str:
    """The path as one word of a unit file: systemd cuts at spaces and reads specifiers at %."""
    text = str(path).replace("%", "%%")
    return f'"{text}"' if " " in text else text


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o644)
