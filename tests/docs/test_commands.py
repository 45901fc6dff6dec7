"""Every command that the documents name is there, and every block that one can copy is run.

`RUNNERS` says which test runs a block as it stands there, with its own addresses and folders.
`ELSEWHERE` says which one runs a block's commands with other words, and why. A new block fails here
until it is listed.
"""

import os
import re
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import click
import pytest
from peers.aerobee_broker import AerobeeBroker
from peers.apache import STORE_SIZES
from peers.daemon import SMALL
from peers.tools import free_port, wait_for

from aerobee.broker.settings import load_settings
from aerobee.client.cli import cli
from aerobee.pipeline.cli import pipeline
from aerobee.sync import connect

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
KINDS = {"sh", "python", "sql", "java", "properties"}  # others are for the eye only: kind ""
SHELL = re.compile(
    r"^[ $]*(aerobee|cat|curl|docker|echo|export|make|openssl|pip|python3?|sudo|systemctl) ",
    re.MULTILINE,
)
COMMAND = re.compile(r"(?:/opt/aerobee/venv/bin/|docker exec mq )?aerobee (.+)")
INLINE = re.compile(r"`(aerobee [^`]+)`")
TARGET = re.compile(r"(?:^|`|&& )make ([a-z][\w-]*)", re.MULTILINE)
RUN = re.compile(r"^(?!\s*#).*\bmake ((?:[a-z][\w-]*(?: |$))+)", re.MULTILINE)  # in scripts of CI
HERE = "tests/docs/test_commands.py"
BOOTED = "it installs a service: a machine is booted for it, and gets the same commands"
PODMAN = "the names and ports may be taken, and podman needs no daemon: it takes the same words"
IMAGE = "what it runs in the container is run without one: variables, secret, first process"
# A page, a text of the block ("" is any block), and the test that runs it.
RUNNERS: Final = (
    ("README.md", "", "tests/docs/test_readme.py"),
    ("lake.md", "", "tests/docs/test_lake_page.py"),
    ("where-spark-runs.md", "", "tests/docs/test_where_spark_runs.py"),
    ("pipeline.md", "", "tests/spark/test_pipeline_page.py"),
    ("console.md", "aerobee console", HERE),
    ("operations.md", "aerobee cluster status", HERE),
    ("operations.md", "aerobee store stat", HERE),
    ("operators-guide.md", "", HERE),
    ("security.md", "aerobee user add root", "tests/docs/test_security_page.py"),
    ("security.md", "openssl req", "tests/docs/test_security_page.py"),
    ("security.md", "aclEnable=true", "tests/docs/test_security_page.py"),
    ("security.md", "aerobee acl grant", "tests/docs/test_security_page.py"),
    ("replication.md", "brokerRole=", HERE),
    ("replication.md", "etcdEndpoints=", HERE),
    ("replication.md", "enableControllerMode=", HERE),
    ("migration.md", "aerobee broker", HERE),
    ("why.md", "", HERE),
    ("sdk.md", "Unconfirmed", HERE),
    ("sdk.md", "app = Worker", HERE),
    ("sdk.md", "aerobee_broker", "tests/docs/test_readme.py"),  # the README has the same
    ("telemetry.md", "telemetry=True", HERE),
    ("telemetry.md", "pip install", "tests/packaging/test_wheel.py"),
)
# The same, and why the block is not run as it stands.
ELSEWHERE: Final = (
    ("operations.md", "install-service", "tests/system/test_systemd.py", BOOTED),
    ("replication.md", "install-service", "tests/system/test_systemd.py", BOOTED),
    ("operations.md", "docker run", "tests/system/test_container.py", PODMAN),
    ("addresses.md", "docker run", "tests/system/test_container.py", PODMAN),
    ("security.md", "docker exec", "tests/docs/test_security_page.py", IMAGE),
    ("security.md", "docker run", "tests/docs/test_security_page.py", IMAGE),
    ("CONTRIBUTING.md", "make test", ".ci/run", "a test that runs all tests would run itself"),
)


def blocks(page: Path) -> list[tuple[str, str]]:
    """The kind and the text of each block, also of those within a list."""
    found = BLOCK.findall(page.read_text())
    return [(kind, textwrap.dedent(text)) for _, kind, text in found if kind]


def block(page: str, containing: str) -> str:
    (found,) = [text for _, text in blocks(ROOT / "docs" / page) if containing in text]
    return found


def documented_commands() -> Iterator[tuple[str, list[str]]]:
    """Every `aerobee` command of the pages, with its page."""
    for page in PAGES:
        shells = [text for kind, text in blocks(page) if kind == "sh"]
        lines = [line for text in shells for line in text.replace("\\\n", " ").splitlines()]
        for line in (*lines, *INLINE.findall(page.read_text())):
            if command := COMMAND.fullmatch(line.partition(" #")[0]):
                yield page.name, command[1].split()


def unknown_word(words: list[str]) -> str | None:
    """The first word that names no command or option; None when all do."""
    command: click.Command = cli
    context = click.Context(cli)
    rest = list(words)
    while rest and isinstance(command, click.Group) and not rest[0].startswith("-"):
        if rest[0].isupper():  # `aerobee COMMAND --help`
            return None
        group = pipeline if rest[0] == "pipeline" else command.get_command(context, rest[0])
        if group is None:
            return rest[0]
        command, rest = group, rest[1:]
    options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    options |= {"--help", "-h"}
    given = [word.partition("=")[0] for word in rest if word.startswith("--")]
    return next((word for word in given if word not in options), None)


def test_every_command_and_option_of_the_documents_is_there() -> None:
    commands = list(documented_commands())
    assert len(commands) > 60
    wrong = [(page, words, word) for page, words in commands if (word := unknown_word(words))]
    assert wrong == []


def test_every_make_target_of_the_documents_is_there() -> None:
    files = [ROOT / "Makefile", *ROOT.glob("make/*.mk")]
    known = set(
        re.findall(r"^([\w-]+):", "\n".join(file.read_text() for file in files), re.MULTILINE)
    )
    pages = (*PAGES, ROOT / "bench/README.md", ROOT / ".github/PULL_REQUEST_TEMPLATE.md")
    named = {(page.name, target) for page in pages for target in TARGET.findall(page.read_text())}
    for script in (ROOT / ".ci/run", *ROOT.glob(".github/workflows/*.yml")):
        runs = RUN.findall(script.read_text())
        assert runs or script.name == "wheels.yml", f"{script} runs no target that this test finds"
        named |= {(script.name, target) for run in runs for target in run.split()}
    assert len(named) > 40
    assert sorted((page, target) for page, target in named if target not in known) == []


def test_every_block_has_a_test_that_runs_it() -> None:
    for page in PAGES:
        for kind, text in blocks(page):
            assert kind in KINDS, f"{page.name}: {kind}"
            rows = [*RUNNERS, *(row[:3] for row in ELSEWHERE)]
            runners = [test for name, part, test in rows if name == page.name and part in text]
            assert len(runners) == 1, f"{page.name}: who runs\n{text}"
            assert (ROOT / runners[0]).exists(), runners[0]


def test_what_is_for_the_eye_only_shows_no_commands() -> None:
    for page in PAGES:
        text = page.read_text()
        found = BLOCK.findall(text)
        assert len(re.findall("^ *```", text, re.MULTILINE)) == 2 * len(found), page.name
        for shown in [text for _, kind, text in found if not kind]:
            assert not SHELL.search(shown), f"{page.name}: who runs\n{shown}"
        outside = BLOCK.sub("", text).splitlines()
        indented = [line for line in outside if line.startswith("    ") and SHELL.match(line)]
        assert indented == [], f"{page.name}: who runs this?"


def test_every_row_about_a_block_has_a_block() -> None:
    stale = [
        (name, part)
        for name, part, *_ in (*RUNNERS, *ELSEWHERE)
        for page in PAGES
        if page.name == name and not any(part in text for _, text in blocks(page))
    ]
    assert stale == []


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AerobeeBroker]:
    with AerobeeBroker(tmp_path_factory.mktemp("pages")) as running:
        with connect(f"mq://{running.namesrv}") as mq:
            mq.admin.create_topic("orders", queues=8)
        yield running


def shell(code: str, broker: AerobeeBroker, expected: int = 0) -> str:
    """Run a line as it stands there, with this installation's `aerobee`."""
    done = subprocess.run(
        ["sh", "-c", code],
        env=os.environ
        | {
            "AEROBEE_URL": f"mq://{broker.namesrv}",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert done.returncode == expected, f"{code}: exit {done.returncode}\n{done.stdout}"
    return done.stdout


def consumed(broker: AerobeeBroker) -> str:
    """The id of a message that the group `billing` has taken."""
    with connect(f"mq://{broker.namesrv}") as mq:
        receipt = mq.send("orders", b"one tea")
        with mq.consumer("orders", group="billing") as inbox:
            message = inbox.get()
            assert message is not None
            message.ack()
    return str(receipt.message_id)


def test_the_daily_commands_of_the_operations_page_work(broker: AerobeeBroker) -> None:
    words = {"ID": consumed(broker), "GROUP": "billing"}
    for line in block("operations.md", "aerobee cluster status").splitlines():
        command = re.sub(r"\b(ID|GROUP)\b", lambda found: words[found[0]], line)
        assert shell(command, broker).strip(), command


def test_the_backup_and_the_commands_on_a_store_work(broker: AerobeeBroker, tmp_path: Path) -> None:
    with connect(f"mq://{broker.namesrv}") as mq:
        mq.send("T", b"kept")
    backup = block("operators-guide.md", "aerobee store snapshot").replace(
        "STORE", f"{broker.store}"
    )
    shell(backup.replace("/backup", f"{tmp_path}"), broker)  # of a broker that runs
    (copy,) = tmp_path.iterdir()
    words = {"DIR": f"{copy}", "DEST": f"{tmp_path / 'another'}"}
    for line in block("operations.md", "aerobee store stat").splitlines():
        shell(re.sub(r"\b(DIR|DEST)\b", lambda found: words[found[0]], line), broker)
    assert "kept" in shell(f"aerobee store dump {tmp_path / 'another'} --topic T", broker)


def test_the_commands_that_change_the_number_of_queues_work(broker: AerobeeBroker) -> None:
    consumed(broker)
    for text in ("--queues 16", "--write-queues 4"):
        for line in block("operators-guide.md", text).splitlines():
            shell(line.replace("GROUP", "billing"), broker)
    assert "4" in shell("aerobee topic show orders --json", broker)


def test_a_broker_takes_the_settings_of_the_replication_page(tmp_path: Path) -> None:
    shown = [text for kind, text in blocks(ROOT / "docs/replication.md") if kind == "properties"]
    assert len(shown) == 4
    for text in shown:
        (tmp_path / "broker.conf").write_text(text)
        assert load_settings(tmp_path / "broker.conf", [], env={}).warnings == []


def test_the_commands_that_ask_why_work(broker: AerobeeBroker) -> None:
    first, second = block("why.md", "aerobee why").splitlines()
    shell(first, broker, expected=3)  # that message is nowhere
    assert '"CONSUMED"' in shell(second.replace("ID", consumed(broker)), broker).upper()


def test_the_console_of_its_page_serves(broker: AerobeeBroker) -> None:
    for line in block("console.md", "aerobee console").splitlines():
        port = free_port()
        line = re.sub(r"mq://\S+", f"mq://{broker.namesrv}", line.partition(" #")[0])
        command = [str(Path(sys.executable).with_name("aerobee")), *line.split()[1:]]
        env = os.environ | {"AEROBEE_URL": f"mq://{broker.namesrv}", "BROWSER": "true"}
        with subprocess.Popen([*command, "--port", f"{port}"], env=env) as console:
            try:
                page = f"http://127.0.0.1:{port}/console/"
                wait_for(partial(is_served, page), timeout=60, what=line)
            finally:
                console.terminate()


def is_served(page: str) -> bool:
    try:
        with urllib.request.urlopen(page, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_store_opens_as_the_page_about_migration_says(tmp_path: Path) -> None:
    with AerobeeBroker(tmp_path / "first") as first:
        with connect(f"mq://{first.namesrv}") as mq:
            mq.send("T", b"kept")
        first.stop()
    sizes = "".join(f"{key}={value}\n" for key, value in (SMALL | STORE_SIZES).items())
    (tmp_path / "broker.conf").write_text(sizes)
    line = block("migration.md", "aerobee broker").replace("broker.conf", f"{tmp_path}/broker.conf")
    command = line.replace("/data/rocketmq/store", f"{first.store}").split()
    command[0] = str(Path(sys.executable).with_name("aerobee"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as second:
        try:
            assert second.stdout is not None
            ready = dict(word.split("=", 1) for word in second.stdout.readline().split()[1:])
            with connect(f"mq://{ready['namesrv']}") as mq:
                with mq.consumer("T", group="g") as inbox:
                    message = inbox.get(timeout=30)
                assert message is not None and message.body == b"kept"
        finally:
            second.terminate()


def run_inside(code: str, around: str, broker: AerobeeBroker) -> str:
    """Run a piece of a coroutine, as the page shows it, inside the program `around`."""
    text = code.replace("mq://localhost:9876", f"mq://{broker.namesrv}")
    program = around.replace("# HERE", textwrap.indent(text, "    ").lstrip())
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


_SDK = """
import asyncio
from types import SimpleNamespace

class CardDeclined(Exception): ...

rows = [SimpleNamespace(body=b"row", id="o-1")]
charged = []

async def charge(body):
    charged.append(body)
    raise CardDeclined

async def main():
    # HERE

async def until_charged():
    task = asyncio.create_task(main())
    while not charged:
        await asyncio.wait([task], timeout=0.05)
        assert not task.done() or task.exception() is None, task.exception()
    task.cancel()
    await asyncio.wait([task])
    print(charged[0])

asyncio.run(until_charged())
"""

_TELEMETRY = """
import asyncio
from aerobee import connect

async def main():
    done = asyncio.Event()
    async def handler(message):
        print(message.body)
        done.set()
    async def page():
        # HERE
    task = asyncio.create_task(page())
    await asyncio.wait([task, asyncio.create_task(done.wait())], return_when="FIRST_COMPLETED")
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled(), task.exception()

asyncio.run(main())
"""


def test_the_first_block_of_the_sdk_page_runs(broker: AerobeeBroker) -> None:
    assert run_inside(block("sdk.md", "Unconfirmed"), _SDK, broker) == "b'{...}'\n"


def test_the_worker_of_the_sdk_page_works(broker: AerobeeBroker, tmp_path: Path) -> None:
    text = block("sdk.md", "app = Worker").replace("localhost:9876", broker.namesrv)
    (tmp_path / "shop.py").write_text(text)
    with connect(f"mq://{broker.namesrv}") as mq:
        for topic in ("parcels", "invoices"):
            mq.admin.create_topic(topic)
        mq.send("orders", b"bill me")
        command = [str(Path(sys.executable).with_name("aerobee")), "worker", "shop:app"]
        with (
            subprocess.Popen(command, cwd=tmp_path) as worker,
            mq.consumer("invoices", group="books") as inbox,
        ):
            try:
                body = b""
                while body != b"bill me":  # what other pages have sent to it comes first
                    message = inbox.get(timeout=60)
                    assert message is not None
                    body = message.body
            finally:
                worker.terminate()


def test_the_telemetry_block_of_the_sdk_page_runs(broker: AerobeeBroker) -> None:
    code = textwrap.indent(block("telemetry.md", "telemetry=True"), "    ")
    assert "b'...'" in run_inside(code.lstrip(), _TELEMETRY, broker)
