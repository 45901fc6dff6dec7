"""container/start.sh, the first process of the image: a secret of its own at the first start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from console.test_safety import Browser
from peers.daemon import Daemon
from peers.tools import free_port

START = str(Path(__file__).parents[2] / "container" / "start.sh")


def environment(folder: Path, **more: str) -> dict[str, str]:
    binaries = Path(sys.executable).parent
    return {
        "PATH": f"{binaries}:/usr/bin:/bin",
        "AEROBEE_BINDADDRESS": "0.0.0.0",
        "AEROBEE_CREDENTIALS_FILE": str(folder / "secret" / "root.json"),
        **more,
    }


def broker(folder: Path, **more: str) -> Daemon:
    return Daemon(folder, "broker", env=environment(folder, **more), program=[START])


def command(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    aerobee = Path(sys.executable).with_name("aerobee")
    return subprocess.run([aerobee, *words], env=env, capture_output=True, text=True, timeout=120)


def url(ready: dict[str, str]) -> str:
    return f"mq://127.0.0.1:{ready['namesrv'].rpartition(':')[2]}"


def test_the_first_start_makes_a_user_and_only_a_client_with_its_secret_is_served(
    tmp_path: Path,
) -> None:
    env = environment(tmp_path)
    file = Path(env["AEROBEE_CREDENTIALS_FILE"])
    with broker(tmp_path) as daemon:
        ready = daemon.ready()
        env["AEROBEE_URL"] = url(ready)
        made = file.read_text()
        assert file.stat().st_mode & 0o777 == 0o600 and os.listdir(file.parent) == [file.name]
        assert str(file) in daemon.log() and json.loads(made)["secretKey"] not in daemon.log()
        sent = command(env, "send", "Greetings", "hello")
        assert sent.returncode == 0, sent.stderr
        unsigned = {name: text for name, text in env.items() if "CREDENTIALS" not in name}
        refused = command(unsigned, "send", "Greetings", "hello")
        assert refused.returncode == 1 and "is not signed" in refused.stderr, refused.stderr
        assert daemon.stop() == 0
    with broker(tmp_path) as daemon:
        daemon.ready()
        assert file.read_text() == made


def test_what_you_say_about_access_control_counts(tmp_path: Path) -> None:
    with broker(tmp_path, AEROBEE_ALLOWANONYMOUS="true") as daemon:
        env = environment(tmp_path, AEROBEE_URL=url(daemon.ready()))
        for each in (env, env | {"AEROBEE_CREDENTIALS_FILE": ""}):
            sent = command(each, "send", "Greetings", "hello")
            assert sent.returncode == 0, sent.stderr


def test_a_client_without_that_file_is_a_client_of_another_cluster(tmp_path: Path) -> None:
    env = environment(tmp_path, AEROBEE_URL=f"mq://127.0.0.1:{free_port()}")
    asked = subprocess.run(
        [START, "ping", "--count", "1", "--timeout", "1"],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert asked.returncode == 4 and "CREDENTIALS" not in asked.stderr, asked.stderr


def test_the_console_of_such_a_broker_is_nobody_until_it_is_logged_in(tmp_path: Path) -> None:
    """The page's process inherits the broker's variables, and must not sign with that file."""
    with broker(tmp_path) as daemon:
        daemon.ready()
        browser = Browser(f"http://{daemon.metrics_address()}")
        browser.begin()
        status, _, answer = browser.ask("GET", "/console/api/topics")
        assert status == 403, answer
