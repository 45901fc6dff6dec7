"""A cluster with something to see, consoles before it, and a real browser before those."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from peers.apache import ApacheBroker
from peers.tools import build_once, need

from aerobee.client.client import Client
from aerobee.testing import EmbeddedBroker
from console.world import ConsoleProcess, Loop, World

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# As root, without the browser's background requests: nothing may leave the machine.
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
HERE = Path(__file__).parent


@dataclass(slots=True)
class Seen:
    """A filled cluster with a console that only shows and one that may change."""

    loop: Loop
    world: World
    url: str
    reader: str
    writer: str
    is_apache: bool

    @property
    def mq(self) -> Client:
        return self.world.mq

    def run(self, work: Any) -> Any:
        return self.loop.run(work)


@pytest.fixture(
    scope="session", params=["aerobee", pytest.param("apache", marks=pytest.mark.apache)]
)
def seen(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seen]:
    if request.param == "apache":
        with ApacheBroker(
            "5.5.0",
            tmp_path_factory.mktemp("apache"),
            timerWheelEnable="true",
            recallMessageEnable="true",
        ) as it:
            yield from _filled(f"mq://{it.namesrv}", is_apache=True)
        return
    loop = Loop()
    broker = EmbeddedBroker(transactionTimeOut=3_600_000)
    loop.run(broker.start())
    try:
        yield from _filled(broker.url, is_apache=False)
    finally:
        loop.run(broker.stop())
        loop.close()


def _filled(url: str, *, is_apache: bool) -> Iterator[Seen]:
    loop = Loop()
    client = Client(url, timeout=10, wait=60)
    world = World(loop.run(client.open()))
    loop.run(world.fill(), 180)
    try:
        with ConsoleProcess(url) as reader, ConsoleProcess(url, "--allow-changes") as writer:
            yield Seen(loop, world, url, reader.address, writer.address, is_apache)
    finally:
        loop.run(world.close())
        loop.run(client.close())
        loop.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; no browser is downloaded."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    path = shutil.which("chromium")
    need(path is not None, "chromium not found on PATH: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield found
        found.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that must log no error, and from which no request may leave the machine."""
    context = browser.new_context(viewport={"width": 1360, "height": 860}, accept_downloads=True)
    context.set_default_timeout(60_000)
    page = context.new_page()
    complaints: list[str] = []
    strangers: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: _note_stranger(asked.url, strangers))
    yield page
    context.close()
    assert complaints == []
    assert strangers == []


def _note_stranger(url: str, strangers: list[str]) -> None:
    if not url.startswith(("http://127.0.0.1:", "blob:http://127.0.0.1:")):
        strangers.append(url)


@pytest.fixture(scope="session")
def axe() -> str:
    """axe-core's script, from the npm registry."""
    need(shutil.which("npm") is not None, "npm not found on PATH: it brings axe-core")
    build_once(
        [["npm", "ci", "--no-audit", "--no-fund"]],
        folder=HERE,
        sources=[HERE / "package.json", HERE / "package-lock.json"],
        stamp=HERE / "node_modules" / "built.sha256",
    )
    return (HERE / "node_modules" / "axe-core" / "axe.min.js").read_text()
