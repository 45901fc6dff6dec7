"""Settings: RocketMQ's keys are known, bad ones are refused in one clear sentence."""

import dataclasses
import re
from pathlib import Path

import pytest

from aerobee.broker.daemon.store_settings import store_settings
from aerobee.broker.settings import (
    Settings,
    SettingsError,
    load_settings,
    render_settings,
    setting_rows,
)
from aerobee.broker.settings.known import effective_fields, find_key, known_keys
from aerobee.broker.settings.properties_file import parse_properties
from aerobee.broker.settings.report import settings_page
from aerobee.broker.store.settings import StoreSettings

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "data"


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "broker.conf"
    file.write_text(text)
    return file


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_all_that_get_broker_config_of_apache_prints_is_a_valid_file(version: str) -> None:
    file = DATA / f"getBrokerConfig-{version}.properties"
    settings = load_settings(file, env={})
    assert settings.listen_port == 10911
    assert settings.broker_ip1 == "192.0.2.2"
    assert all(warning.startswith("no effect here: ") for warning in settings.warnings)
    mentioned = " ".join(settings.warnings)
    for _, key, value in parse_properties(file.read_text()):
        known = find_key(key)
        if known is None or known.effect == "none here":
            assert re.search(rf"\b{key}\b", mentioned), f"{key} is accepted silently"
        elif known.effect == "yes" and key != "brokerName" and value:
            assert render_settings(settings).count(f"\n{known.key}=") == 1


def test_file_then_environment_then_set_is_the_order(tmp_path: Path) -> None:
    file = write(tmp_path, "listenPort=1001\nbrokerName=file\nbrokerClusterName=file\n")
    settings = load_settings(
        file,
        ["brokerName=set"],
        {"AEROBEE_BROKERNAME": "env", "AEROBEE_BROKER_CLUSTER_NAME": "env"},
    )
    assert (settings.listen_port, settings.broker_name) == (1001, "set")
    assert settings.broker_cluster_name == "env"
    assert settings.sources["listenPort"] == "broker.conf, line 1"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("listenPrt=1", "there is no setting listenPrt (--set); did you mean listenPort?"),
        ("mapedFileSizeCommitLg=1", "did you mean mapedFileSizeCommitLog?"),
        ("LISTENPORT=1", "did you mean listenPort?"),
        ("zzzzqqqq=1", "`aerobee config` lists all settings"),
        ("listenPort=many", "listenPort=many (--set) is not possible: it must be a whole number"),
        ("listenPort=65536", "it must be at most 65535"),
        ("listenPort=-1", "it must be at least 0"),
        ("listenPort=2", "leaves no port for listenPort - 2"),
        ("autoCreateTopicEnable=yes", "it must be true or false"),
        ("flushDiskType=NEVER", "it must be ASYNC_FLUSH or SYNC_FLUSH"),
        ("mappedFileSizeConsumeQueue=30", "multiple of 20"),
        ("deleteWhen=25", "hours of the day"),
        ("messageDelayLevel=1s 5x", "write levels as"),
        ("messageDelayLevel=", "write levels as"),
        ("advertisedAddr=host", "HOST:PORT"),
        ("advertisedAddr=::1:20911", "HOST:PORT"),
        ("advertisedAddr=[::1:20911", "HOST:PORT"),
        ("advertisedAddr=[host]:20911", "HOST:PORT"),
        ("advertisedAddr=http://host:20911", "HOST:PORT"),
        ("advertisedAddr=a b:20911", "HOST:PORT"),
        ("namesrvAddr=http://host:9876", "write http://host:9876 as HOST:PORT"),
        ("brokerIP1=10.0.0.1:10911", "without a port"),
        ("brokerIP1=a b", "without a port"),
        ("bindAddress=", "0.0.0.0"),
        ("namesrvAddr=10.0.0.1:9876;10.0.0.2", "write 10.0.0.2 as HOST:PORT"),
        ("internalNetworks=10.0.0.0/99", "is not a network"),
        ("brokerName=a/b", "brokerName=a/b is not possible"),
        ("brokerName=..", "is not possible"),
        ("diskMaxUsedSpaceRatio=90", "must not be above diskSpaceCleanForciblyRatio=85"),
        ("brokerRole=SLAVE", "needs a brokerId above 0"),
        ("haMasterAddress=host", "HOST:PORT"),
        ("enableControllerMode=true", "controllerAddr=HOST:PORT"),
        ("controllerAddr=host", "is not like 10.0.0.1:9878"),
        ("allAckInSyncStateSet=true", "needs etcdEndpoints or a controller"),
        ("listenPort", "is not KEY=VALUE"),
    ],
)
def test_a_bad_setting_is_one_clear_sentence(given: str, expected: str) -> None:
    with pytest.raises(SettingsError) as error:
        load_settings(None, [given], {})
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "given",
    [
        "enableControllerInNamesrv=true",
        "enableDLegerCommitLog=true",
        "storeType=defaultRocksDB",
        "totalReplicas=3",
        "storePathCommitLog=/a,/b",
    ],
)
def test_what_promises_more_than_there_is_refuses_to_start(given: str) -> None:
    key = given.partition("=")[0]
    with pytest.raises(SettingsError, match=rf"{key}.*not"):
        load_settings(None, [given], {})


def test_what_is_switched_off_or_at_its_only_value_does_not_refuse() -> None:
    settings = load_settings(None, ["enableLmq=false", "brokerRole=ASYNC_MASTER"], {})
    assert settings.warnings == []


def test_a_file_of_tls_settings_fills_in_what_nothing_else_says(tmp_path: Path) -> None:
    tls = tmp_path / "tls.properties"
    tls.write_text("tls.server.keyPath=/k\ntls.server.certPath=/c\n")
    settings = load_settings(
        None,
        [f"tls.config.file={tls}", "tls.server.certPath=/other"],
        {"AEROBEE_TLS_SERVER_MODE": "enforcing"},
    )
    assert (settings.tls_server_key_path, settings.tls_server_cert_path) == ("/k", "/other")
    assert settings.tls_server_mode == "enforcing"


def test_every_wrong_setting_is_named_at_once() -> None:
    with pytest.raises(SettingsError) as error:
        load_settings(None, ["listenPrt=1", "enableLmq=true", "namesrvListenPort=x"], {})
    assert len(str(error.value).splitlines()) == 3


def test_old_spellings_count_as_the_new_ones() -> None:
    settings = load_settings(
        None, ["mapedFileSizeCommitLog=65536", "mapedFileSizeConsumeQueue=2000"], {}
    )
    assert settings.mapped_file_size_commit_log == 65536
    assert settings.mapped_file_size_consume_queue == 2000
    assert settings.warnings == []


def test_old_path_keys_are_right_where_they_name_what_is_there_anyway(tmp_path: Path) -> None:
    right = [f"storePathRootDir={tmp_path}", f"storePathConsumeQueue={tmp_path}/consumequeue"]
    assert load_settings(None, [*right, f"abortFile={tmp_path}/abort"], {}).warnings == []
    elsewhere = load_settings(None, [*right, "storePathIndex=/elsewhere"], {})
    assert [w for w in elsewhere.warnings if "storePathIndex" in w]


def test_a_key_without_effect_warns_and_is_still_printed() -> None:
    settings = load_settings(None, ["sendMessageThreadPoolNums=16", "popPollingSize=9"], {})
    assert len(settings.warnings) == 2
    assert "sendMessageThreadPoolNums" in settings.warnings[0]
    assert "\nsendMessageThreadPoolNums=16\n" in render_settings(settings)


def test_a_variable_that_kubernetes_makes_is_no_setting_and_no_error() -> None:
    env = {"AEROBEE_SERVICE_HOST": "10.0.0.1", "AEROBEE_PORT": "tcp://1", "AEROBEE_LISTENPRT": "1"}
    settings = load_settings(None, [], env)
    assert settings.warnings == ["the variable AEROBEE_LISTENPRT is not a known setting"]


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read the settings file .*nothing"):
        load_settings(tmp_path / "nothing.conf", env={})


def test_javas_properties_format_is_read(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "# comment\n! another\n\n  brokerName : caf\\u0065 \nlistenPort 4242\r\n"
        "messageDelayLevel = 1s \\\n    5s\nregionId=a\\=b\n",
    )
    settings = load_settings(file, env={})
    assert (settings.broker_name, settings.listen_port) == ("cafe", 4242)
    assert settings.delay_levels_ms == (1000, 5000)
    assert settings.region_id == "a=b"


def test_a_key_that_comes_twice_is_said() -> None:
    settings = load_settings(DATA / "twice.properties", env={})
    assert settings.listen_port == 2000
    assert settings.warnings == [
        "listenPort is in twice.properties twice; line 2 counts, not line 1"
    ]


def test_a_running_broker_takes_changes_of_some_settings_only() -> None:
    settings = load_settings(None, [], {})
    heard: list[set[str]] = []
    settings.listeners.append(heard.append)
    assert settings.change({"fileReservedTime": "48", "deleteWhen": "04"}) == {
        "fileReservedTime": (72, 48)
    }
    assert settings.file_reserved_time == 48
    assert heard == [{"fileReservedTime"}]
    assert settings.data_version()["counter"] == 1
    for wrong in (
        {"listenPort": "1234"},
        {"fileReservedTime": "-1"},
        {"fileReservdTime": "1"},
        {"diskMaxUsedSpaceRatio": "95"},
    ):
        with pytest.raises(SettingsError):
            settings.change({"transactionCheckMax": "3", **wrong})
    assert settings.transaction_check_max == 15, "a change is made wholly or not at all"
    assert len(heard) == 1


def test_get_broker_config_prints_every_known_key_sorted() -> None:
    lines = render_settings(load_settings(None, [], {})).splitlines()
    assert lines == sorted(lines, key=lambda line: line.partition("=")[0])
    assert {line.partition("=")[0] for line in lines} == set(known_keys())
    assert "enabledAppendPropCRC=true" in lines


def test_aerobee_config_has_a_row_for_every_key_with_its_meaning() -> None:
    rows = setting_rows(load_settings(None, ["listenPort=0"], {}))
    assert {row.key for row in rows} == set(known_keys())
    assert all(row.meaning for row in rows)
    port = next(row for row in rows if row.key == "listenPort")
    assert (port.value, port.default, port.source, port.effect) == ("0", "10911", "--set", "yes")


def test_our_defaults_are_within_their_own_bounds() -> None:
    for key, known in known_keys().items():
        text = f"{key}={str(known.default).lower() if known.type is bool else known.default}"
        load_settings(None, [text], {})


def test_a_setting_with_effect_is_read_somewhere() -> None:
    code = "\n".join(
        file.read_text()
        for file in (ROOT / "broker").rglob("*.py")
        if "settings/" not in str(file.relative_to(ROOT)) or file.name in ("load.py", "settings.py")
    )
    read = set(re.findall(r"(?:settings|self)\.(?=(\w+))", code))
    assert {described.name for described in effective_fields()} - read == set()


def test_the_store_gets_its_share_of_the_settings(tmp_path: Path) -> None:
    settings = load_settings(
        None,
        {"storePathRootDir": tmp_path, "flushDiskType": "SYNC_FLUSH", "maxMessageSize": 1000},
        {},
    )
    store = store_settings(settings)
    assert store.store_path_root_dir == str(tmp_path)
    assert store.sync_flush
    assert store.max_message_size == 1000
    ours = {described.name for described in dataclasses.fields(Settings)}
    theirs = {described.name for described in dataclasses.fields(store)}
    assert theirs - ours == {"has_arbiter"}  # whether etcdEndpoints are set


def test_a_store_alone_has_the_defaults_of_the_settings(tmp_path: Path) -> None:
    """Tests, tools and the simulators make a store without settings."""
    settings = load_settings(None, {"storePathRootDir": tmp_path}, {})
    by_settings = dataclasses.asdict(store_settings(settings))
    by_itself = dataclasses.asdict(StoreSettings(str(tmp_path)))
    assert by_settings.pop("store_path_commit_log") == StoreSettings(str(tmp_path)).layout.commitlog
    assert by_itself.pop("store_path_commit_log") == ""
    assert by_itself == by_settings


@pytest.mark.parametrize(
    ("given", "reserved"),
    [
        ([], 10 << 30),
        (["diskMaxUsedSpaceRatio=80"], 0),
        (["diskSpaceCleanForciblyRatio=86"], 0),
        (["diskSpaceWarningLevelRatio=95"], 0),
        (["diskMaxUsedSpaceRatio=80", "diskReservedBytes=1000"], 1000),
        (["diskReservedBytes=0"], 0),
    ],
)
def test_a_disk_ratio_that_is_set_acts_alone(given: list[str], reserved: int) -> None:
    assert store_settings(load_settings(None, given, {})).disk_reserved_bytes == reserved


SECRETS = {
    "initAuthenticationUser": '{"username":"admin","password":"planted-1"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"planted-2"}',
    "metricsGrpcExporterHeader": "authorization:planted-3",
    "socksProxyConfig": '{"10.0.0.0/8":{"addr":"p:1","password":"planted-4"}}',
}


def test_no_report_of_the_settings_shows_a_secret(tmp_path: Path) -> None:
    file = write(tmp_path, "".join(f"{key}={value}\n" for key, value in SECRETS.items()))
    settings = load_settings(file, env={})
    rows = {row.key: row for row in setting_rows(settings)}
    reports = [
        render_settings(settings),
        repr(settings),
        *settings.warnings,
        *map(str, rows.values()),
    ]
    assert "planted" not in "".join(reports)
    assert all(rows[key].value == "******" and rows[key].source for key in SECRETS)
    assert {row.value for row in setting_rows(Settings()) if row.key in SECRETS} == {"", "{}"}


@pytest.mark.parametrize("profile", sorted((ROOT / "conf").glob("*.conf")), ids=lambda p: p.name)
def test_a_profile_loads_without_a_warning(profile: Path) -> None:
    assert load_settings(profile, env={}).warnings == []


def test_the_page_of_settings_is_the_one_that_the_code_makes() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == settings_page(), "run: make docs-settings"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ({"sendMessageThreadPoolNums": "64"}, "no effect here: sizes of thread pools"),
        ({"enableLmq": "true"}, "no effect here: light queues are not there yet"),
        ({"listenPort": "20911"}, "settings file and restart"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused_with_what_would_help(
    text: dict[str, str], reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason):
        load_settings(None, {}, {}).change(text)


def test_a_variable_may_name_the_file_that_holds_the_value(tmp_path: Path) -> None:
    secret = tmp_path / "root.json"
    secret.write_text('{"username":"root","password":"s3cr3t"}\n')
    users = tmp_path / "users.yml"
    users.write_text("accounts: []")
    env = {"AEROBEE_INITAUTHENTICATIONUSER_FILE": str(secret), "AEROBEE_ACL_FILE": str(users)}
    settings = load_settings(None, [], env)
    assert settings.init_authentication_user == '{"username":"root","password":"s3cr3t"}'
    assert settings.acl_file == str(users)  # a setting whose own name ends in _FILE
    with pytest.raises(SettingsError, match=r"/nowhere of the variable AEROBEE_.*cannot be read"):
        load_settings(None, [], {"AEROBEE_INITAUTHENTICATIONUSER_FILE": "/nowhere"})
