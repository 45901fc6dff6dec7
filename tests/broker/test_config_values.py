"""A value that no file can hold: all others are saved, and the stop goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from peers.in_process import Client, running_broker
from structlog.testing import capture_logs

from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.codes import RequestCode

EDITED = """{"ours":1e999,"topicConfigTable":{"Odd":{"topicName":"Odd","writeQueueNums":4,
"readQueueNums":4,"perm":6,"x":1e999,"y":1}}}"""


async def create(client: Client, topic: str) -> int:
    fields = {"topic": topic, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    return (await client.request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code


def config_of(folder: Path, name: str) -> Any:
    return fastjson.loads((folder / "store/config" / name).read_bytes())


async def test_a_number_beyond_all_bounds_in_an_edited_file_keeps_no_topic_from_being_saved(
    tmp_path: Path,
) -> None:
    """JSON has no infinity, but 1e999 is read as one."""
    path = tmp_path / "store/config/topics.json"
    path.parent.mkdir(parents=True)
    path.write_text(EDITED)
    with capture_logs() as logs:
        async with running_broker(tmp_path) as app:
            client = await Client.connect(app)
            for name in "New", "Newer":
                assert await create(client, name) == 0
            group = fastjson.dumps({"groupName": "g"})
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            assert (await client.request(code, {}, group)).code == 0
            await client.close()
    table = config_of(tmp_path, "topics.json")["topicConfigTable"]
    assert {"New", "Newer"} <= table.keys()
    assert table["Odd"]["y"] == 1 and table["Odd"]["writeQueueNums"] == 4
    assert "x" not in table["Odd"]
    errors = [line for line in logs if line["log_level"] == "error"]
    assert {line["entry"] for line in errors} == {"ours", "topicConfigTable.Odd"}
    assert "g" in config_of(tmp_path, "subscriptionGroup.json")["subscriptionGroupTable"]


async def test_a_stop_saves_the_other_files_when_one_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with capture_logs() as logs:
        async with running_broker(tmp_path) as app:
            client = await Client.connect(app)
            assert await create(client, "New") == 0
            await client.close()
            app.broker.offsets.commit("g", "New", 0, 3)
            monkeypatch.setattr(app.broker.topics.file, "stop", lambda: 1 / 0)
            monkeypatch.setattr(app.broker.clients, "stop", lambda: 1 / 0)
    parts = [line["part"] for line in logs if line["event"] == "not saved at the stop"]
    assert len(parts) == 2 and "topics" in parts
    assert config_of(tmp_path, "consumerOffset.json")["offsetTable"] == {"New@g": {0: 3}}
    assert not (tmp_path / "store/abort").exists()
