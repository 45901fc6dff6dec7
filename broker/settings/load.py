"""From broker.conf, AEROBEE_<KEY> and --set to Settings; the later of these wins."""

import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from aerobee.broker.settings.fields import NO_EFFECT, REFUSED
from aerobee.broker.settings.known import Known, find_key, known_keys, text_of
from aerobee.broker.settings.properties_file import parse_properties
from aerobee.broker.settings.storage import default_store_path
from aerobee.broker.settings.typed import (
    Settings,
    SettingsError,
    check_together,
    checked_value,
    require_key,
)

PREFIX = "AEROBEE_"
# Variables for clients, shells and the choice of the hot path.
NO_SETTINGS = {
    *("AEROBEE_URL", "AEROBEE_NAMESRV", "AEROBEE_CREDENTIALS_FILE"),
    *("AEROBEE_COMPLETE", "AEROBEE_PURE"),
}

# Old keys for single folders of the store: accepted if they name the folder that is used anyway.
_OLD_PLACES = {
    "storePathConsumeQueue": "consumequeue",
    "storePathIndex": "index",
    "storeCheckpoint": "checkpoint",
    "abortFile": "abort",
}


def load_settings(
    file: str | os.PathLike[str] | None = None,
    overrides: Sequence[str] | Mapping[str, object] = (),
    env: Mapping[str, str] | None = None,
    *,
    meant: Mapping[str, str] | None = None,
) -> Settings:
    """Read and check all settings; SettingsError lists everything that is wrong.

    `meant`: keys that stand for others (a name server's listenPort is our namesrvListenPort)."""
    environ = os.environ if env is None else env
    settings = Settings(folder=os.path.dirname(os.path.abspath(file)) if file else "")
    problems: list[str] = []
    for key, text, source in chain(
        _from_file(file, settings.warnings),
        _from_environment(environ, settings.warnings),
        _from_overrides(overrides, problems),
        _from_tls_file(settings),
    ):
        try:
            _take(settings, (meant or {}).get(key, key), text, source)
        except SettingsError as error:
            problems.append(str(error))
    problems.extend(_refusals(settings))
    if problems:
        raise SettingsError("\n".join(problems))
    _fill_in(settings, environ)
    check_together(settings)
    settings.warnings.extend(_without_effect(settings))
    return settings


def _take(settings: Settings, key: str, text: str, source: str) -> None:
    known = require_key(key, source)
    value = checked_value(known, key, text, source)
    if known.attribute:
        setattr(settings, known.attribute, value)
    settings.given[known.key] = text.strip()
    settings.sources[known.key] = source


def _from_file(
    file: str | os.PathLike[str] | None, warnings: list[str]
) -> Iterator[tuple[str, str, str]]:
    if file is None:
        return
    path = Path(file)
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError:
        text = path.read_bytes().decode("latin-1")
    except OSError as error:
        raise SettingsError(
            f"cannot read the settings file {path}: {error.strerror}; give another with --config"
        ) from error
    seen: dict[str, int] = {}
    for number, key, value in parse_properties(text):
        if key in seen:
            warnings.append(
                f"{key} is in {path.name} twice; line {number} counts, not line {seen[key]}"
            )
        seen[key] = number
        yield key, value, f"{path.name}, line {number}"


def _from_tls_file(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Settings from tls.config.file, unless given elsewhere."""
    for key, value, source in _from_file(settings.tls_config_file or None, settings.warnings):
        if key not in settings.given:
            yield key, value, source


def _from_environment(
    env: Mapping[str, str], warnings: list[str]
) -> Iterator[tuple[str, str, str]]:
    """AEROBEE_LISTENPORT and AEROBEE_LISTEN_PORT are listenPort, AEROBEE_TLS_SERVER_MODE is
    tls.server.mode. With _FILE behind it a variable names the file that holds the value: a
    container's secret, or a credential of systemd.

    Kubernetes sets such names by itself for a service called aerobee (AEROBEE_PORT,
    AEROBEE_SERVICE_HOST), so one that we do not know is a warning and no error."""
    if env.get("NAMESRV_ADDR"):
        yield "namesrvAddr", env["NAMESRV_ADDR"], "variable NAMESRV_ADDR"
    spelled = {key.replace(".", "").lower(): key for key in known_keys()}
    for name in sorted(env):
        if name.startswith(PREFIX):
            wanted = name.removeprefix(PREFIX).replace("_", "").lower()
            if wanted in spelled:
                yield spelled[wanted], env[name], f"variable {name}"
            elif (key := wanted.removesuffix("file")) in spelled:
                yield spelled[key], _content(name, env[name]), f"variable {name}"
            elif name not in NO_SETTINGS and not re.match(
                r"AEROBEE_(\w+_)?(PORT|SERVICE)(_|$)", name
            ):
                warnings.append(f"the variable {name} is not a known setting")


def _content(name: str, path: str) -> str:
    try:
        return Path(path).read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"the file {path} of the variable {name} cannot be read: {error}; check its path "
            "and permissions"
        ) from None


def _from_overrides(
    overrides: Sequence[str] | Mapping[str, object], problems: list[str]
) -> Iterator[tuple[str, str, str]]:
    if isinstance(overrides, Mapping):
        for key, value in overrides.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            yield key, text, "given by the program"
        return
    for override in overrides:
        key, equals, value = override.partition("=")
        if equals:
            yield key.strip(), value, "--set"
        else:
            problems.append(f"--set {override} is not KEY=VALUE, for example --set listenPort=0")


def _refusals(settings: Settings) -> Iterator[str]:
    for known in known_keys().values():
        if known.effect == REFUSED and settings.value_of(known) != known.default:
            source = settings.sources[known.key]
            yield (
                f"{known.key}={settings.given[known.key]} ({source}) asks for what this broker "
                f"does not have: {known.about.meaning}; remove it or set it to "
                f"{text_of(known.default) or 'nothing'}"
            )
    if "," in settings.store_path_commit_log or ";" in settings.store_path_commit_log:
        yield "storePathCommitLog names several folders, which is not there yet; name one"
    waits_for_all = settings.has_arbiter and settings.failover_ack == "IN_SYNC"
    if settings.all_ack_in_sync_state_set and not waits_for_all:
        yield (
            "allAckInSyncStateSet=true promises what needs etcdEndpoints or a controller, and "
            "failoverAck=IN_SYNC"
        )


def _without_effect(settings: Settings) -> Iterator[str]:
    """One warning for all keys of a kind."""
    kinds: dict[str, list[str]] = {}
    for key in settings.given:
        known = find_key(key)
        if known is not None and known.effect == NO_EFFECT and not _is_old_place(settings, known):
            kinds.setdefault(known.about.meaning, []).append(known.key)
    for meaning, keys in kinds.items():
        yield f"no effect here: {', '.join(keys)} ({meaning})"
    if settings.has_arbiter and settings.failover_ack == "MASTER":
        yield (
            "failoverAck=MASTER: sends are answered before any replica has them; a failover loses "
            "what the new master had not received, at most what was put in "
            f"haMaxTimeSlaveNotCatchup={settings.ha_max_time_slave_not_catchup} ms"
        )
    if settings.broker_id != 0 and not settings.is_slave and not settings.has_arbiter:
        yield f"brokerId={settings.broker_id} is taken as 0: this broker is a master"
        settings.broker_id = 0


def _is_old_place(settings: Settings, known: Known) -> bool:
    place = _OLD_PLACES.get(known.key)
    if place is None:
        return False
    given = os.path.abspath(os.path.expanduser(settings.given[known.key]))
    return given == os.path.join(settings.store_path_root_dir, place)


def _fill_in(settings: Settings, env: Mapping[str, str]) -> None:
    """Defaults that depend on the machine."""
    if not settings.broker_name:
        name = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:127].strip("-")
        settings.broker_name = name or "broker"
    root = settings.store_path_root_dir or default_store_path(env)
    settings.store_path_root_dir = os.path.abspath(os.path.expanduser(root))
    log = settings.store_path_commit_log or os.path.join(settings.store_path_root_dir, "commitlog")
    settings.store_path_commit_log = os.path.abspath(os.path.expanduser(log))
