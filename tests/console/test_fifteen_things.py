"""What people do with such a tool, each done in a real browser: Aerobee's cluster and Apache's."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from aerobee.client.client import Client
from aerobee.client.errors import AerobeeError
from aerobee.client.message import Message
from console.world import ORDERS, UNREAD

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Route

    from console.conftest import Seen

Found = TypeVar("Found")
pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def expect(found: Any) -> Any:
    from playwright.sync_api import expect as wait_until

    wait_until.set_options(timeout=30_000)
    return wait_until(found)


def rows(page: Page, label: str) -> Locator:
    return page.get_by_role("region", name=label, exact=True).locator("tbody tr")


def fill(page: Page, label: str, text: str) -> None:
    page.get_by_label(label, exact=True).fill(text)


def find_by(page: Page, address: str, mode: str) -> None:
    page.goto(f"{address}topics/orders?tab=messages")
    page.get_by_label("Find by").select_option(mode)


async def until(ask: Callable[[], Awaitable[Found]], is_it: Callable[[Found], bool]) -> Found:
    """What `ask` gives once it is as it should be."""
    async with asyncio.timeout(60):
        while True:
            found = await ask()
            if is_it(found):
                return found
            await asyncio.sleep(0.1)


async def committed(seen: Seen, group: str, topic: str) -> int:
    return sum(row.offset for row in await seen.mq.admin.lag(group, topic))


def test_01_a_message_is_found_by_key_id_and_time_and_read(page: Page, seen: Seen) -> None:
    find_by(page, seen.reader, "key")
    fill(page, "Key", "o-7")
    page.get_by_role("button", name="Find", exact=True).click()
    expect(rows(page, "Messages")).to_have_count(1)
    find_by(page, seen.reader, "id")
    fill(page, "Message id", seen.world.ids[7])
    page.get_by_role("button", name="Find", exact=True).click()
    expect(rows(page, "Messages")).to_have_count(1)
    rows(page, "Messages").get_by_role("link").first.click()
    expect(page.get_by_role("heading", name=seen.world.ids[7])).to_be_visible()
    expect(page.get_by_role("region", name="Body of the message")).to_contain_text('"o-7"')
    expect(page.get_by_text("eu-north")).to_be_visible()
    find_by(page, seen.reader, "time")
    page.get_by_role("button", name="Find", exact=True).click()
    expect(rows(page, "Messages")).to_have_count(50)
    page.get_by_role("button", name="Next page").click()
    expect(rows(page, "Messages")).to_have_count(100)


def test_01_numbers_of_a_body_are_shown_as_they_are(page: Page, seen: Seen) -> None:
    body = b'{"id": 9007199254740993, "prices": [1.10, {}], "text": "{,}"}'
    sent = seen.run(seen.mq.send("shipments", body))
    page.goto(f"{seen.reader}message?topic=shipments&id={sent.message_id}")
    shown = page.get_by_role("region", name="Body of the message")
    expect(shown).to_contain_text('"id": 9007199254740993')
    assert shown.text_content() == (
        '{\n  "id": 9007199254740993,\n  "prices": [\n    1.10,\n    {}\n  ],\n  "text": "{,}"\n}'
    )


def test_01_the_header_finds_a_message_whose_topic_nobody_names(page: Page, seen: Seen) -> None:
    page.goto(seen.reader)
    expect(page.get_by_label("Search")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type(seen.world.ids[11])
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=seen.world.ids[11])).to_be_visible()


def test_01_topics_that_could_not_be_searched_are_named(page: Page, seen: Seen) -> None:
    def refuse(route: Route) -> None:
        route.fulfill(status=502, json={"error": "no connection to its broker"})

    page.route("**/api/messages?topic=payments&**", refuse)
    page.goto(f"{seen.reader}messages?mode=key&key=nowhere&everywhere=1")
    said = page.get_by_text("0 found in")
    expect(said).to_contain_text("1 could not be searched: no connection to its broker")


def test_01_a_message_is_found_once_by_its_offset_id(page: Page, seen: Seen) -> None:
    sent = seen.run(seen.mq.send("shipments", b"found once"))
    page.goto(f"{seen.reader}messages?mode=id&id={sent.offset_message_id}&everywhere=1")
    expect(page.get_by_role("region", name="Body of the message")).to_contain_text("found once")


def test_02_the_tail_shows_what_comes_and_says_what_it_left_out(page: Page, seen: Seen) -> None:
    page.goto(f"{seen.reader}topics/shipments?tab=messages")
    page.get_by_role("button", name="Tail").click()
    expect(page.get_by_text("Tailing: 0 shown")).to_be_visible()

    async def burst(count: int) -> None:
        async with seen.mq.producer("shipments", linger=0.005) as producer:
            for number in range(count):
                await producer.send(b"burst", key=f"b-{number}")

    seen.run(seen.mq.send("shipments", b"one of the tail", key="tail-1"))
    expect(rows(page, "Messages").filter(has_text="tail-1")).to_have_count(1)
    seen.run(burst(400))
    expect(page.get_by_text(re.compile(r"Tailing: \d+ shown, [1-9]\d* left out"))).to_be_visible()


def test_03_the_lag_is_shown_in_messages_and_in_age_for_each_queue(page: Page, seen: Seen) -> None:
    page.goto(f"{seen.reader}groups/mailer")
    mine = rows(page, "Queues of the group").filter(has_text="orders")
    expect(mine).to_have_count(4)
    lags = [int(row.locator("td").nth(5).inner_text().replace(",", "")) for row in mine.all()]
    assert sum(lags) >= UNREAD
    expect(mine.first.locator("td").nth(6)).to_have_text(re.compile(r"\d+ (s|min|h)"))


def test_04_a_reset_is_previewed_offline_and_moves_to_where_it_said(page: Page, seen: Seen) -> None:
    before = seen.run(committed(seen, "mailer", "orders"))
    page.goto(f"{seen.writer}groups/mailer")
    page.get_by_role("button", name="Reset…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Move to").select_option("shift")
    dialog.get_by_label("By (negative is back)").fill("-5")
    dialog.get_by_role("button", name="Preview").click()
    expect(
        dialog.get_by_text("20 messages would be read again, 0 would be skipped")
    ).to_be_visible()
    move = dialog.get_by_role("button", name="Move the group")
    move.click()
    expect(dialog.get_by_text("type the group's name to confirm")).to_be_visible()
    dialog.get_by_label("Type mailer to confirm").fill("mailer")
    move.click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    seen.run(_reaches(seen, "mailer", before - 20))


async def _reaches(seen: Seen, group: str, total: int) -> None:
    await until(lambda: committed(seen, group, "orders"), lambda now: now == total)


def test_04_times_and_exact_offsets_are_previewed_too(page: Page, seen: Seen) -> None:
    page.goto(f"{seen.writer}groups/mailer")
    page.get_by_role("button", name="Reset…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Preview").click()  # to an hour ago: everything again
    expect(dialog.get_by_text("would be read again, 0 would be skipped")).to_be_visible()
    dialog.get_by_label("Move to").select_option("offset")
    dialog.get_by_label("Offset").fill("7")
    dialog.get_by_label("Only queue").fill("2")
    dialog.get_by_role("button", name="Preview").click()
    moved = rows(page, "What would change")
    expect(moved).to_have_count(1)
    expect(moved.locator("td").nth(1)).to_have_text("7")


def test_05_the_backlog_is_skipped_after_a_preview(page: Page, seen: Seen) -> None:
    async def group_with_backlog() -> None:
        await seen.mq.admin.create_group("skipper")
        async with seen.mq.consumer("orders", group="skipper") as inbox:
            await (await asyncio.wait_for(inbox.get(), 60)).ack()

    seen.run(group_with_backlog())
    page.goto(f"{seen.writer}groups/skipper")
    expect(rows(page, "Queues of the group").first).to_be_visible()
    page.get_by_role("button", name="Skip backlog…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("would be skipped")).to_be_visible()
    dialog.get_by_label("Type skipper to confirm").fill("skipper")
    dialog.get_by_role("button", name="Move the group").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_text("0 messages behind")).to_be_visible()


def test_06_what_a_group_has_not_read_is_listed(page: Page, seen: Seen) -> None:
    async def group_that_read_some() -> int:
        await seen.mq.admin.create_group("half-way")
        async with seen.mq.consumer("payments", group="half-way") as inbox:
            for _ in range(2):
                await (await asyncio.wait_for(inbox.get(), 60)).ack()
        lags = await seen.mq.admin.lag("half-way", "payments")
        return sum(row.lag for row in lags)

    left = seen.run(group_that_read_some())
    page.goto(f"{seen.reader}topics/payments?tab=groups")
    expect(rows(page, "Groups").filter(has_text="half-way")).to_have_count(1)
    unread = rows(page, "Groups").filter(has_text="half-way")
    unread.get_by_role("link", name="What it has not read").click()
    expect(rows(page, "Messages")).to_have_count(left)


def test_07_dead_letters_are_chosen_replayed_and_marked(page: Page, seen: Seen) -> None:
    page.goto(f"{seen.writer}dead")
    page.get_by_role("link", name="ledger").click()
    letters = rows(page, "Dead letters")
    expect(letters).to_have_count(6)
    letters.filter(has_text="p-2").get_by_role("checkbox").check()
    letters.filter(has_text="p-3").get_by_role("checkbox").check()
    page.get_by_role("button", name="Replay 2…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("Would send 2 to payments")).to_be_visible()
    dialog.get_by_label("A second, at most").fill("50")
    dialog.get_by_role("button", name="Replay", exact=True).click()
    expect(page.get_by_text("2 of 2 sent again")).to_be_visible()
    expect(letters.filter(has_text="ago").or_(letters.filter(has_text="now"))).to_have_count(2)

    async def copies() -> list[Message]:
        return [row async for row in seen.mq.find("payments", key="p-2")]

    found = seen.run(copies())
    assert len(found) == 2
    assert found[-1].properties["AEROBEE_REPLAYED_FROM"]
    expect(letters).to_have_count(6)


def test_07_dead_letters_are_exported(page: Page, seen: Seen, tmp_path: Path) -> None:
    page.goto(f"{seen.reader}dead/ledger")
    expect(rows(page, "Dead letters")).to_have_count(6)
    with page.expect_download() as download:
        page.get_by_role("link", name="Export all").click()
    saved = tmp_path / "dead.jsonl"
    download.value.save_as(saved)
    lines = [json.loads(line) for line in saved.read_text().splitlines()]
    assert {line["keys"][0] for line in lines} == {f"p-{number}" for number in range(6)}


def test_08_a_message_is_handed_to_one_group_and_its_member_answers(page: Page, seen: Seen) -> None:
    page.goto(f"{seen.writer}message?topic=orders&id={seen.world.ids[0]}")
    page.get_by_role("button", name="Resend to a group…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Group").select_option("billing")
    dialog.get_by_role("button", name="Resend", exact=True).click()
    expect(dialog.get_by_text("answered CR_SUCCESS")).to_be_visible()
    dialog.get_by_label("Group").select_option("mailer")
    dialog.get_by_role("button", name="Resend", exact=True).click()
    expect(dialog.get_by_text("no member of group 'mailer' is online")).to_be_visible()


def test_08_a_java_member_handles_the_message_again(page: Page, seen: Seen, tmp_path: Path) -> None:
    if not seen.is_apache:
        pytest.skip("the JVM is at hand where Apache's broker is")
    from peers.java_client import JavaClient
    from peers.tools import wait_for

    sent = seen.run(seen.mq.send("shipments", b"once more, please", key="again"))
    with JavaClient("5.5.0", tmp_path) as java:
        namesrv = seen.url.removeprefix("mq://")
        reader = java.consumer(namesrv, "reader", "java-readers", "shipments")

        def handled() -> int:
            return sum(row["id"] == sent.message_id for row in java.messages(reader))

        wait_for(lambda: handled() == 1, timeout=60, what="the Java consumer has read it")
        page.goto(f"{seen.writer}message?topic=shipments&id={sent.message_id}")
        expect(
            rows(page, "What became of it in each group").filter(has_text="java-readers")
        ).to_have_count(1)
        page.get_by_role("button", name="Resend to a group…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Group").select_option("java-readers")
        dialog.get_by_role("button", name="Resend", exact=True).click()
        expect(dialog.get_by_text("answered CR_SUCCESS")).to_be_visible()
        assert handled() == 2


def test_09_whether_a_group_got_a_message_is_reported(page: Page, seen: Seen) -> None:
    page.goto(f"{seen.reader}message?topic=orders&id={seen.world.ids[-1]}")
    groups = rows(page, "What became of it in each group")
    expect(groups.filter(has_text="billing")).to_contain_text(re.compile("passed|consumed"))
    expect(groups.filter(has_text="mailer")).to_contain_text(re.compile("offline|behind"))
    expect(
        page.get_by_text("stored in orders").or_(page.get_by_text("stored")).first
    ).to_be_visible()


def test_09_the_life_of_a_dead_letter_ends_with_its_death(page: Page, seen: Seen) -> None:
    async def rejected() -> str:
        found = [row.message_id async for row in seen.mq.find("payments", key="p-0")]
        return found[0]

    page.goto(f"{seen.reader}message?topic=payments&id={seen.run(rejected())}")
    expect(page.locator(".life").get_by_text("dead", exact=True)).to_be_visible()
    expect(page.locator(".life").get_by_text("ledger").first).to_be_visible()


def test_10_delayed_messages_are_listed_and_one_is_taken_back(page: Page, seen: Seen) -> None:
    page.goto(f"{seen.writer}waiting")
    timers = rows(page, "Timers")
    count = 38 if seen.is_apache else 40  # the SDK uses Apache's delay levels where they fit
    expect(timers).to_have_count(count)
    expect(page.get_by_role("img", name=re.compile("40 messages wait"))).to_be_visible()
    timers.filter(has_text="r-39").get_by_role("button", name="Recall…").click()
    page.get_by_role("button", name="Recall it").click()
    expect(timers).to_have_count(count - 1)


def test_11_a_test_message_is_sent(page: Page, seen: Seen) -> None:
    page.goto(f"{seen.writer}topics/shipments")
    page.get_by_role("button", name="Send a message").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Body").fill('{"shipment": "by hand"}')
    dialog.get_by_label("Keys").fill("by-hand")
    dialog.get_by_label("Properties").fill("origin=console")
    dialog.get_by_role("button", name="Send", exact=True).click()
    expect(dialog.get_by_text("Stored as")).to_be_visible()

    async def found() -> list[Message]:
        return [row async for row in seen.mq.find("shipments", key="by-hand")]

    async def stored() -> list[Message]:
        return await until(found, bool)

    assert [row.properties["origin"] for row in seen.run(stored())] == ["console"]


def test_11_only_a_body_that_is_shown_whole_is_edited(page: Page, seen: Seen) -> None:
    for body, can_be in ((b"x" * 1000, True), (b"\xff\x00", False), (b"ab " * 30_000, False)):
        sent = seen.run(seen.mq.send("shipments", body))
        page.goto(f"{seen.writer}message?topic=shipments&id={sent.message_id}")
        edit = page.get_by_role("button", name="Edit and send as new")
        expect(edit).to_be_visible()
        assert edit.is_enabled() == can_be


def test_12_results_are_exported_as_json_lines_and_as_csv(
    page: Page, seen: Seen, tmp_path: Path
) -> None:
    find_by(page, seen.reader, "time")
    for link, ending in (("Export JSON lines", "jsonl"), ("CSV", "csv")):
        with page.expect_download() as download:
            page.get_by_role("link", name=link, exact=True).click()
        saved = tmp_path / f"orders.{ending}"
        download.value.save_as(saved)
        assert len(saved.read_text().splitlines()) >= ORDERS


def test_13_owners_are_what_members_say_and_joins_are_what_was_seen(page: Page, seen: Seen) -> None:
    assert seen.world.billing is not None
    page.goto(f"{seen.reader}groups/billing")
    queues = rows(page, "Queues of the group").filter(has_text="orders")
    expect(queues.filter(has_text=seen.mq.client_id)).to_have_count(4)
    expect(page.get_by_text("Nobody came or left")).to_be_visible()

    async def join() -> tuple[Client, Any]:
        client = await Client(seen.url, timeout=10).open()
        return client, await client.consumer("orders", group="billing").__aenter__()

    async def leave() -> None:
        await consumer.close()
        await client.close()

    client, consumer = seen.run(join())
    expect(rows(page, "Joins and leaves").filter(has_text="joined")).to_have_count(1)
    seen.run(leave())
    expect(rows(page, "Joins and leaves").filter(has_text="left")).to_have_count(1)


def test_14_a_console_that_only_shows_offers_no_change(page: Page, seen: Seen) -> None:
    page.goto(f"{seen.reader}groups/mailer")
    expect(page.get_by_text("READ-ONLY")).to_be_visible()
    expect(rows(page, "Queues of the group").first).to_be_visible()
    for name in ("Reset…", "Skip backlog…", "Pause…"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    page.goto(f"{seen.reader}dead/ledger")
    expect(rows(page, "Dead letters").first).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("Replay"))).to_have_count(0)


def test_14_a_group_is_paused_and_continues(page: Page, seen: Seen) -> None:
    async def enabled() -> bool:
        config = await seen.mq.admin.group_config("mailer")
        return all(row.get("consumeEnable", True) for row in config.values())

    page.goto(f"{seen.writer}groups/mailer")
    page.get_by_role("button", name="Pause…").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_role("button", name="Resume…")).to_be_visible()
    assert not seen.run(enabled())
    page.get_by_role("button", name="Resume…").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume", exact=True).click()
    expect(page.get_by_role("button", name="Pause…")).to_be_visible()
    assert seen.run(enabled())


def test_15_what_is_kept_and_until_when_is_reported(page: Page, seen: Seen) -> None:
    page.goto(f"{seen.reader}store")
    expect(page.get_by_text("Messages since", exact=True)).to_be_visible()
    expect(page.get_by_text("Space ends", exact=True)).to_be_visible()
    expect(page.get_by_text(re.compile("after 20"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("files from"))).to_be_visible()


def test_open_transactions_clients_settings_and_brokers_are_shown(page: Page, seen: Seen) -> None:
    page.goto(f"{seen.reader}transactions")
    expect(rows(page, "Open transactions").filter(has_text="warehouse")).to_have_count(1)
    page.goto(f"{seen.reader}clients")
    expect(rows(page, "Clients").filter(has_text="billing").first).to_be_visible()
    page.goto(f"{seen.reader}settings")
    expect(rows(page, "Settings").filter(has_text="maxIndexNum")).to_have_count(1)
    page.goto(f"{seen.reader}cluster")
    expect(rows(page, "Brokers").first).to_contain_text("read and write")
    expect(rows(page, "Name servers").first).to_contain_text("answers")


def test_numbers_are_live(page: Page, seen: Seen) -> None:
    page.goto(f"{seen.reader}topics")
    shipments = rows(page, "Topics").filter(has_text="shipments").locator("td").nth(1)
    before = int(shipments.inner_text().replace(",", ""))
    seen.run(seen.mq.send("shipments", b"one more"))
    expect(shipments).to_have_text(f"{before + 1:,}")


def test_an_error_says_what_happened(page: Page, seen: Seen) -> None:
    page.goto(f"{seen.reader}groups/nobody-knows-it")
    expect(page.get_by_role("alert")).to_contain_text("nobody-knows-it")
    with pytest.raises(AerobeeError):
        seen.run(seen.mq.admin.group_config("nobody-knows-it"))
