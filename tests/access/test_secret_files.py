"""Secrets in files of their own: they change without the file that names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import structlog
from peers.in_process import running_broker

from access.guarded import USERS, Asker, write_users
from aerobee.broker.base.clock import VirtualClock

NO = 16


async def test_a_changed_secret_file_is_found_and_a_missing_one_is_waited_for(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    more = "  - {accessKey: app, type: Super, secretFile: %s}\n"
    secret, late = tmp_path / "app-secret", tmp_path / "late-secret"

    def give(file: Path, text: str) -> None:
        new = tmp_path / "new"
        new.write_text(text)
        new.chmod(0o600)
        new.rename(file)  # as Kubernetes and systemd do

    give(secret, "first")
    path = write_users(tmp_path, USERS + more % secret.name)
    settings: dict[str, Any] = {"acl_enable": True, "acl_file": str(path)}
    with structlog.testing.capture_logs() as lines:
        async with (
            running_broker(tmp_path, clock, **settings) as app,
            Asker.connected(app.broker_port) as asker,
        ):

            async def codes(*secrets: str) -> list[int]:
                return [(await asker.ask("app", 26, secret=each)).code for each in secrets]

            assert await codes("first", "second") == [0, NO]
            await clock.advance(6)
            give(secret, "second")
            await clock.advance(6)
            assert await codes("first", "second") == [NO, 0]
            write_users(tmp_path, USERS + more % late.name)
            await clock.advance(6)
            assert await codes("second", "third") == [0, NO], "nothing changes yet"
            give(late, "third")
            await clock.advance(6)
            assert await codes("second", "third") == [NO, 0]
    reloads = [line["event"] for line in lines if "reloaded" in line["event"]]
    assert len(reloads) == 3, reloads
    assert "not reloaded" in reloads[1]
