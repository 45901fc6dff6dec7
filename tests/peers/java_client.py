"""RocketMQ's Java clients and mqadmin by remote control: one JVM per version serves a whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from peers.apache import java_command
from peers.remote import ClientError, Event, RemoteClient

__all__ = ["ClientError", "Event", "JavaClient"]


class JavaClient(RemoteClient):
    """A JVM that runs ``peers.ClientDriver``; see there for the commands and their options.

    Names of options and of JVM properties are written with ``__`` for each dot.
    """

    def __init__(self, version: str, folder: Path, **properties: str) -> None:
        self.version = version
        dotted = {key.replace("__", "."): value for key, value in properties.items()}
        super().__init__(
            java_command(version, folder, "ClientDriver", str(folder), properties=dotted), folder
        )

    def _line(self, number: int, command: str, options: dict[str, Any]) -> str:
        words = [
            f"{key.replace('__', '.')}={quote(_text(value))}" for key, value in options.items()
        ]
        return "\t".join([str(number), command, *words])

    def admin(self, *args: str, timeout: float = 60) -> str:
        """What ``mqadmin ARGS`` prints."""
        return str(self.call("admin", args="\n".join(args), timeout=timeout)["text"])


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
