"""Hostile texts are escaped, pages are accessible, and screenshots for the documents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from access.guarded import write_users

from aerobee.client.client import Client
from aerobee.client.errors import AerobeeError
from aerobee.testing import EmbeddedBroker
from console.test_fifteen_things import expect, rows
from console.world import ConsoleProcess, Loop

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from console.conftest import Seen

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

IMAGES = Path(__file__).parents[2] / "docs" / "images"
IMAGE_BYTES_MAX = 300 << 10
PAGES = (
    *("", "topics", "topics/orders", "topics/orders?tab=messages", "topics/orders?tab=groups"),
    *("topics/orders?tab=settings", "messages", "groups", "groups/mailer", "groups/billing"),
    *("dead", "dead/ledger", "waiting", "transactions", "clients", "store", "cluster", "settings"),
)
DARK_PAGES = ("", "topics", "groups/mailer", "dead/ledger", "waiting", "store")
HOSTILE = (
    "<script>window.owned=1</script>",
    "<img src=x onerror=window.owned=1>",
    '"><svg onload=window.owned=1>',
    "javascript:window.owned=1",
    "'-window.owned=1-'",
    "{{constructor.constructor('window.owned=1')()}}",
    "</textarea><iframe srcdoc='<script>parent.owned=1</script>'>",
    "\u202e\u0007<b>turned around</b>",
)


@pytest.fixture(scope="module")
def hostile() -> Iterator[str]:
    """A console before a cluster whose names and messages are all bad."""
    loop = Loop()
    broker = EmbeddedBroker()
    loop.run(broker.start())
    ids: list[str] = []

    async def fill() -> None:
        async with broker.connect() as mq:
            for number, text in enumerate(HOSTILE):
                safe = text.replace(" ", "\u00a0")
                receipt = await mq.send(
                    "hostile",
                    text.encode(),
                    key=[safe, f"k-{number}"],
                    tag=safe,
                    properties={safe: text, "x": safe},
                )
                ids.append(receipt.message_id)
            await _hostile_names(mq)
            async with mq.consumer("hostile", group="victims") as inbox:
                for text in HOSTILE:
                    await (await inbox.get()).reject(text)

    loop.run(fill())
    with ConsoleProcess(broker.url, "--allow-changes") as console:
        yield " ".join((console.address, *ids))
    loop.run(broker.stop())
    loop.close()


async def _hostile_names(mq: Client) -> None:
    """Brokers reject most of them; those they accept must be shown as they are."""
    for text in HOSTILE:
        for make in (mq.admin.create_topic, mq.admin.create_group):
            try:
                await make(text)
            except AerobeeError:
                continue


def test_hostile_texts_stay_texts(page: Page, hostile: str) -> None:
    address, *ids = hostile.split(" ")
    page.on("dialog", lambda dialog: pytest.fail(f"a dialog: {dialog.message}"))
    pages = [
        *("topics", "topics/hostile?tab=messages", "dead/victims", "groups", "groups/victims"),
        *(f"message?topic=hostile&id={one}" for one in ids),
        "messages?topic=%3Cscript%3Ewindow.owned%3D1%3C%2Fscript%3E",
        "topics/%3Cimg%20src%3Dx%20onerror%3Dwindow.owned%3D1%3E",
        "groups/%3Csvg%20onload%3Dwindow.owned%3D1%3E?tab=%3Cscript%3E",
        "messages?mode=key&key=%3Cimg%20src%3Dx%20onerror%3Dwindow.owned%3D1%3E&everywhere=1",
    ]
    for path in pages:
        page.goto(address + path)
        expect(page.locator("main h1, main .note").first).to_be_visible()
        if path == "topics/hostile?tab=messages":
            expect(rows(page, "Messages")).to_have_count(len(HOSTILE))
            expect(page.get_by_text("<img src=x onerror=window.owned=1>").first).to_be_visible()
        assert page.locator("main :is(img, iframe, script, object, b.turned)").count() == 0
        assert page.evaluate("window.owned === undefined")
    page.goto(f"{address}message?topic=hostile&id={ids[7]}")
    body = page.get_by_role("region", name="Body of the message")
    expect(body).to_contain_text("\u2426\u2407<b>turned around</b>")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(browser: Browser, seen: Seen, axe: str, scheme: str) -> None:
    if seen.is_apache:
        pytest.skip("the pages are the same")
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    found: list[str] = []
    rules = "" if scheme == "light" else "{runOnly: ['color-contrast']}"  # all else is the same
    message = f"message?topic=orders&id={seen.world.ids[0]}"
    for path in (*PAGES, message) if scheme == "light" else (*DARK_PAGES, message):
        page.goto(seen.writer + path)
        expect(page.locator("main h1")).to_be_visible()
        expect(page.locator("tbody tr, .facts dt, .cards dt, .empty").first).to_be_visible()
        found += _violations(page, axe, path, rules)
    page.goto(f"{seen.writer}groups/mailer")
    page.get_by_role("button", name="Skip backlog…").click()
    expect(page.get_by_role("button", name="Move the group")).to_be_visible()
    found += _violations(page, axe, "dialog", rules)
    context.close()
    assert found == []


def _violations(page: Page, axe: str, path: str, rules: str) -> list[str]:
    page.evaluate(axe)
    report = page.evaluate(f"axe.run({rules})")
    return [
        f"{path}: {row['id']}: {node['html'][:120]}: {node['failureSummary'][:200]}"
        for row in report["violations"]
        for node in row["nodes"]
    ]


def test_pages_are_reached_and_used_by_keyboard(page: Page, seen: Seen) -> None:
    page.goto(seen.reader)
    expect(page.locator("main h1")).not_to_have_text("…")
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("p")
    expect(page.get_by_role("button", name="Live")).to_have_attribute("aria-pressed", "false")
    page.get_by_role("link", name="orders", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="orders")).to_be_visible()


def test_a_user_of_a_guarded_cluster_logs_in_and_sees_what_he_may(
    page: Page, tmp_path: Path
) -> None:
    loop = Loop()
    users = write_users(tmp_path)
    broker = EmbeddedBroker(aclEnable=True, aclFile=str(users))
    loop.run(broker.start())
    try:
        with ConsoleProcess(broker.url) as console:
            page.goto(f"{console.address}topics")
            page.get_by_role("button", name="Log in as a user of the cluster").click()
            page.get_by_label("User (access key)").fill("root")
            page.get_by_label("Secret").fill("wrong wrong wrong")
            page.get_by_role("dialog").get_by_role("button", name="Log in").click()
            expect(page.get_by_role("dialog").get_by_role("alert")).to_be_visible()
            page.get_by_label("Secret").fill("a-secret-of-root")
            page.get_by_role("dialog").get_by_role("button", name="Log in").click()
            expect(page.get_by_role("button", name="Log out root")).to_be_visible()
            expect(page.get_by_text("No topic yet")).to_be_visible()
    finally:
        loop.run(broker.stop())
        loop.close()


@pytest.mark.parametrize(
    ("name", "path", "scheme"),
    [
        ("overview", "", "light"),
        ("group", "groups/mailer", "light"),
        ("message", "message?topic=payments&id={dead}", "light"),
        ("waiting", "waiting", "dark"),
    ],
)
def test_pictures_for_the_documents_are_small(
    browser: Browser, seen: Seen, tmp_path: Path, name: str, path: str, scheme: str
) -> None:
    """`make docs-images` keeps them; elsewhere they are only made."""
    if seen.is_apache:
        pytest.skip("the pages are the same")

    async def dead() -> str:
        return [row.message_id async for row in seen.mq.find("payments", key="p-0")][-1]

    context = browser.new_context(
        viewport={"width": 1280, "height": 800},
        color_scheme=scheme,
    )
    page = context.new_page()
    page.goto(seen.writer + path.format(dead=seen.run(dead())))
    expect(page.locator("main h1")).not_to_have_text("…")
    expect(page.locator("tbody tr, .facts dt").first).to_be_visible()
    for _ in range(6 if name == "overview" else 0):
        with page.expect_response(lambda answer: "api/overview" in answer.url):
            seen.run(_traffic(seen.mq))
    folder = IMAGES if os.environ.get("AEROBEE_DOCS_IMAGES") else tmp_path
    folder.mkdir(exist_ok=True)
    picture = folder / f"console-{name}.png"
    page.screenshot(path=picture)
    context.close()
    assert 10_000 < picture.stat().st_size < IMAGE_BYTES_MAX


async def _traffic(mq: Client) -> None:
    for number in range(150):
        await mq.send("orders", b'{"order":"later"}', key=f"later-{number}", tag="new")
