"""`aerobee why` as scripts and people run it."""

from pathlib import Path

from aerobee_command import aerobee

from aerobee.broker.daemon.namesrv import AppNameServer
from aerobee.broker.settings import Settings
from aerobee.testing import EmbeddedBroker


async def test_the_command_tells_the_life_and_a_verdict_for_each_group(
    aerobee_broker: EmbeddedBroker,
) -> None:
    url = aerobee_broker.url
    sent = (await aerobee("send", "orders", "hello", "--json", url=url)).json
    await aerobee("consume", "orders", "--group", "billing", "-n", "1", url=url)
    output = (await aerobee("why", sent["message_id"], "--json", url=url)).json
    assert list(output) == ["id", "life", "groups"]
    assert [row["event"] for row in output["life"]] == ["stored"]
    assert {"at", "event", "topic"} <= output["life"][0].keys()
    [row] = output["groups"]
    assert list(row) == ["group", "verdict", "text", "facts", "remedy"]
    assert (row["group"], row["verdict"]) == ("billing", "consumed")
    text = (await aerobee("why", sent["message_id"], "--group", "billing", url=url)).out
    assert sent["message_id"] in text and "stored" in text and "billing  CONSUMED: " in text


async def test_exit_code_3_says_that_it_is_nowhere(aerobee_broker: EmbeddedBroker) -> None:
    url = aerobee_broker.url
    result = await aerobee("why", "7F00000100002A9F0000000000099999", url=url, code=3)
    assert "every group  NOT FOUND: " in result.out
    output = (await aerobee("why", "0" * 32, "--json", "--topic", "orders", url=url, code=3)).json
    assert output["groups"][0]["group"] == "*" and output["life"] == []


async def test_the_remedy_of_a_reset_is_a_command_that_works(
    aerobee_broker: EmbeddedBroker,
) -> None:
    url = aerobee_broker.url
    sent = (await aerobee("send", "orders", "hello", "--json", url=url)).json
    await aerobee("group", "create", "billing", url=url)
    await aerobee("offsets", "reset", "billing", "orders", "--to-last", url=url)
    words = ("why", sent["message_id"], "--group", "billing", "--json")
    [row] = (await aerobee(*words, url=url)).json["groups"]
    assert row["verdict"] == "skipped_by_reset"
    command = row["remedy"].partition("aerobee ")[2].replace("TIME", "1h")
    await aerobee(*command.split(), url=url)
    [row] = (await aerobee(*words, url=url)).json["groups"]
    assert row["verdict"] == "offline"


async def test_without_a_broker_nothing_is_known(tmp_path: Path) -> None:
    names = AppNameServer(Settings(namesrv_listen_port=0, store_path_root_dir=str(tmp_path)))
    await names.start()
    try:
        url = f"mq://127.0.0.1:{names.namesrv_port}"
        [row] = (await aerobee("why", "0" * 32, "--json", url=url)).json["groups"]
    finally:
        await names.stop()
    assert row["verdict"] == "unknown" and "know no broker" in row["text"]
