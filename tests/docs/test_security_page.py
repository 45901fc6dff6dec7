"""docs/security.md as an operator follows it: a super user, certificates, a broker, other users."""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from access.test_image_start import broker, environment, url
from peers.daemon import SMALL, Daemon

from aerobee.sync import connect

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/security.md").read_text()


def block(containing: str) -> str:
    found = [
        textwrap.dedent(text) for _, text in re.findall(r"(?ms)^( *)```\w+\n(.*?)^\1```", PAGE)
    ]
    (text,) = [text for text in found if containing in text]
    return text.replace("mq.example.org", "localhost").replace("10.1.2.3", "127.0.0.1")


def shell(code: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-ec", code],
        cwd=folder,
        env=os.environ | {"PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}"
    return done.stdout


def test_the_five_minutes_of_the_page_lead_to_a_user_with_rights(tmp_path: Path) -> None:
    here = {"/var/lib/aerobee/store": f"{tmp_path}/store", "/etc/aerobee": f"{tmp_path}"}

    def as_here(text: str) -> str:
        for page, test in here.items():
            text = text.replace(page, test)
        return text

    said = shell(as_here(block("user add root --super")), tmp_path)
    secret = re.search(r"secretKey=(\S+)", said)
    assert secret is not None, said
    shell(block("openssl req -x509"), tmp_path)
    settings = dict(line.split("=", 1) for line in as_here(block("aclEnable=true\n")).splitlines())
    with Daemon(tmp_path, env=None, **settings) as daemon:
        port = daemon.ready()["namesrv"].rpartition(":")[2]
        users = as_here(block("export AEROBEE_URL")).replace("SECRET", secret[1])
        said = shell(users.replace("9876", port), tmp_path)
        assert "allow" in said
        assert daemon.stop() == 0


def test_a_secret_that_you_bring_yourself_signs_you_in(tmp_path: Path) -> None:
    line, docker = block("openssl rand -hex 16").split("\n", 1)
    shell(line, tmp_path)
    given = dict(re.findall(r"-e (\w+)=(\S+)", docker))
    env = {
        key: value.replace("/run/secrets/root", f"{tmp_path}/root.json")
        for key, value in given.items()
    }
    password = re.search(r'"password":"(\w{32})"', (tmp_path / "root.json").read_text())
    assert password is not None
    with Daemon(tmp_path, env=env, **SMALL) as daemon:
        namesrv = daemon.ready()["namesrv"]
        with connect(f"mq://root:{password[1]}@{namesrv}") as mq:
            mq.admin.create_topic("orders")
            assert "orders" in mq.admin.topics()
        assert daemon.stop() == 0


def test_the_secret_that_the_image_has_made_signs_you_in(tmp_path: Path) -> None:
    """By the image's first process; `docker exec` itself is in tests/system/test_container.py."""
    file = environment(tmp_path)["AEROBEE_CREDENTIALS_FILE"]
    with broker(tmp_path) as daemon:
        address = url(daemon.ready()).removeprefix("mq://")
        line = block("docker exec").removeprefix("docker exec mq ")
        user = json.loads(shell(line.replace("/var/lib/aerobee/secret/root.json", file), tmp_path))
        with connect(f"mq://{user['accessKey']}:{user['secretKey']}@{address}") as mq:
            mq.admin.create_topic("orders")
            assert "orders" in mq.admin.topics()
