"""Topics that are filled, and pulls of them, through a client of a broker in this process."""

from typing import Any

from waiting import until

from aerobee.broker.daemon.app import AppBroker
from aerobee.protocol.files import properties
from aerobee.protocol.files.record import decode_records
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ, Command
from peers.in_process import Client, pull_ext, send_ext

CODECS = {"JSON": JSON, "ROCKETMQ": ROCKETMQ, "MSGPACK": MSGPACK}
WAIT = {"sysFlag": "6", "suspendTimeoutMillis": "5000"}  # subscription inside, may be held

WAIT_LONG = WAIT | {"suspendTimeoutMillis": "600000"}  # its time does not end within a test


async def dispatched(app: AppBroker) -> None:
    """What is stored can be pulled."""
    store = app.broker.store
    await until(lambda: store.dispatched_offset == store.max_physical_offset)


async def fill(client: Client, count: int, topic: str = "Orders", **more: Any) -> None:
    """Messages 0..count-1 in queue 0, visible when this returns."""
    await client.request(310, send_ext(topic, **more), b"0")
    commands = [client.command(310, send_ext(topic, **more), b"%d" % n) for n in range(1, count)]
    if commands:
        await client.ask_all(commands)
    await client.request(11, pull_ext(topic, offset=count - 1) | WAIT)


async def tagged(client: Client, tags: str, topic: str = "Orders") -> None:
    """One message for each letter, its tag."""
    for tag in tags:
        text = properties.encode({"UNIQ_KEY": "u", "TAGS": tag, "letter": tag})
        await client.request(310, send_ext(topic, i=text), tag.encode())
    await client.request(11, pull_ext(topic, offset=len(tags) - 1) | WAIT)


def bodies(answer: Command) -> list[bytes]:
    return [bytes(message.body) for message in decode_records(answer.body)]


def offsets(answer: Command) -> tuple[int, int, int]:
    ext = answer.ext
    return int(ext["nextBeginOffset"]), int(ext["minOffset"]), int(ext["maxOffset"])
