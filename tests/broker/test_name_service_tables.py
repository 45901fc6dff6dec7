"""The key-value table and the settings of the name service."""

import json
import shutil
from pathlib import Path

import pytest
from peers.name_server import Ask, register
from structlog.testing import capture_logs

from aerobee.broker.daemon.namesrv import AppNameServer
from aerobee.broker.handlers.name_service.admin import NAME_SERVICE_KEYS
from aerobee.broker.net.listening import StartError
from aerobee.broker.services.config_files import table_file
from aerobee.broker.settings import load_settings
from aerobee.protocol.wire.codes import RequestCode, ResponseCode


async def test_the_key_value_table_survives_a_restart(
    server: AppNameServer, ask: Ask, tmp_path: Path
) -> None:
    item = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"}
    assert (await ask(RequestCode.GET_KV_CONFIG, **item)).code == ResponseCode.QUERY_NOT_FOUND
    assert (await ask(RequestCode.PUT_KV_CONFIG, **item, value="broker-a:4")).code == 0
    assert (await ask(RequestCode.GET_KV_CONFIG, **item)).ext == {"value": "broker-a:4"}
    table = await ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="ORDER_TOPIC_CONFIG")
    assert bytes(table.body) == b'{"table":{"orders":"broker-a:4"}}'
    answer = await register(ask)
    assert bytes(answer.body) == b'{"table":{"orders":"broker-a:4"}}'
    server.settings.change({"orderMessageEnable": "true"})
    route = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")
    assert json.loads(bytes(route.body))["orderTopicConf"] == "broker-a:4"

    again = AppNameServer(server.settings)
    again.name_service.kv.load()
    assert again.name_service.kv.get(**item) == "broker-a:4"
    assert (await ask(RequestCode.DELETE_KV_CONFIG, **item)).code == 0
    assert (await ask(RequestCode.GET_KV_CONFIG, **item)).code == ResponseCode.QUERY_NOT_FOUND


async def test_settings_are_shown_and_changed_within_their_bounds(
    server: AppNameServer, ask: Ask
) -> None:
    shown = bytes((await ask(RequestCode.GET_NAMESRV_CONFIG)).body).decode()
    values = dict(line.split("=", 1) for line in shown.splitlines())
    assert set(values) == NAME_SERVICE_KEYS  # as the real ones print; see test_odd_requests
    assert values["orderMessageEnable"] == "false"
    assert values["listenPort"] == str(server.settings.namesrv_listen_port)
    assert values["kvConfigPath"].endswith("kvConfig.json")
    changed = await ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"enableAllTopicList=false\n")
    assert changed.code == 0
    refused = await ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    fixed = await ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"kvConfigPath=/elsewhere")
    assert fixed.code == ResponseCode.NO_PERMISSION
    wrong = await ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"bindAddress=0.0.0.0")
    assert "cannot change while the broker runs" in str(wrong.remark)


async def test_the_answer_to_a_request_that_lacks_a_field_names_it(ask: Ask) -> None:
    answer = await ask(RequestCode.PUT_KV_CONFIG, key="k", value="v")
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "namespace" in str(answer.remark)
    assert (await ask(RequestCode.SEND_MESSAGE_V2)).code == 3


@pytest.mark.parametrize(
    ("code", "answered"),
    [
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, ResponseCode.TOPIC_NOT_EXIST),
        (RequestCode.GET_KV_CONFIG, ResponseCode.QUERY_NOT_FOUND),
        (RequestCode.DELETE_KV_CONFIG, ResponseCode.SUCCESS),
        (RequestCode.GET_KVLIST_BY_NAMESPACE, ResponseCode.QUERY_NOT_FOUND),
        (RequestCode.WIPE_WRITE_PERM_OF_BROKER, ResponseCode.SUCCESS),
        (RequestCode.ADD_WRITE_PERM_OF_BROKER, ResponseCode.SUCCESS),
        (RequestCode.GET_TOPICS_BY_CLUSTER, ResponseCode.SUCCESS),
        (RequestCode.DELETE_TOPIC_IN_NAMESRV, ResponseCode.SUCCESS),
        (RequestCode.GET_BROKER_MEMBER_GROUP, ResponseCode.SUCCESS),
    ],
)
async def test_what_names_nothing_finds_or_changes_nothing_as_at_rocketmq(
    ask: Ask, code: int, answered: int
) -> None:
    assert (await ask(code)).code == answered


async def test_a_key_without_a_value_is_not_there(ask: Ask) -> None:
    item = {"namespace": "N", "key": "k"}
    assert (await ask(RequestCode.PUT_KV_CONFIG, **item, value="v")).code == 0
    assert (await ask(RequestCode.PUT_KV_CONFIG, **item)).code == 0  # no value: the key is removed
    assert (await ask(RequestCode.GET_KV_CONFIG, **item)).code == ResponseCode.QUERY_NOT_FOUND
    answer = await ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="N")
    assert answer.code == ResponseCode.QUERY_NOT_FOUND


async def test_a_key_that_cannot_be_saved_is_no_success(
    server: AppNameServer, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_file, "RETRY_S", 0.05)
    monkeypatch.setattr(table_file, "WHOLE_SHARE", 0.0)  # else it pauses for 20 save times
    path = Path(server.name_service.kv.file.path)
    item = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"}
    assert (await ask(RequestCode.PUT_KV_CONFIG, **item, value="broker-a:4")).code == 0
    shutil.rmtree(path.parent)
    path.parent.write_text("no folder")
    for code, more in ((RequestCode.PUT_KV_CONFIG, {"value": "b"}), (102, {})):
        answer = await ask(code, **item, **more)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "cannot be saved" in (answer.remark or "")
    path.parent.unlink()
    assert (await ask(RequestCode.PUT_KV_CONFIG, **item, value="broker-a:8")).code == 0
    again = AppNameServer(server.settings)
    again.name_service.kv.load()
    assert again.name_service.kv.get(**item) == "broker-a:8"


async def test_a_table_that_cannot_be_saved_is_logged_at_the_stop(tmp_path: Path) -> None:
    settings = load_settings(None, {"namesrvListenPort": 0, "storePathRootDir": tmp_path}, {})
    server = AppNameServer(settings)
    await server.start()
    (tmp_path / "config").write_text("no folder")
    server.name_service.kv.put("ORDER_TOPIC_CONFIG", "orders", "broker-a:4")
    with capture_logs() as logs:
        await server.stop()
    assert [line["part"] for line in logs if line["event"] == "not saved at the stop"]


async def test_a_table_that_cannot_be_read_stops_the_start_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "config" / "kvConfig.json").mkdir(parents=True)
    settings = load_settings(None, {"namesrvListenPort": 0, "storePathRootDir": tmp_path}, {})
    with pytest.raises(StartError, match=r"kvConfig\.json"):
        await AppNameServer(settings).start()
