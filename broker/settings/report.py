"""Settings as text: for getBrokerConfig, for `aerobee config`, and as docs/settings.md."""

from dataclasses import dataclass

from aerobee.broker.settings.fields import EFFECT, NO_EFFECT, REFUSED
from aerobee.broker.settings.known import Known, Value, known_keys, text_of
from aerobee.broker.settings.typed import Settings


@dataclass(frozen=True, slots=True)
class SettingRow:
    """What `aerobee config` shows of one key."""

    key: str
    value: str  # in force
    default: str
    unit: str
    meaning: str
    effect: str  # "yes", "none here" or "refuses"
    source: str  # where the value was given, "" for a default
    runtime: bool
    ours: bool
    upstream_default: str  # RocketMQ's, where it differs from ours


def setting_rows(settings: Settings | None = None) -> list[SettingRow]:
    """Every known key, those with effect first, each with its value in force."""
    return [_row(known, settings or Settings()) for known in known_keys().values()]


def render_settings(settings: Settings) -> str:
    """All keys as getBrokerConfig prints them: k=v lines, sorted."""
    rows = {key: known.shown(settings.value_of(known)) for key, known in known_keys().items()}
    return "".join(f"{key}={rows[key]}\n" for key in sorted(rows))


def _row(known: Known, settings: Settings) -> SettingRow:
    return SettingRow(
        key=known.key,
        value=known.shown(settings.value_of(known)),
        default=text_of(known.default),
        unit=known.about.unit,
        meaning=known.about.meaning,
        effect=known.effect,
        source=settings.sources.get(known.key, ""),
        runtime=known.about.runtime,
        ours=known.about.ours,
        upstream_default=known.about.upstream or "",
    )


_INTRODUCTION = """\
# Settings

This page is generated from the code by `make docs-settings`.

A settings file has RocketMQ's format and names (`key=value` lines); `conf/broker.conf` is one to
start from. Every key can also be given as a variable `AEROBEE_<KEY>` (`AEROBEE_LISTENPORT=20911`
or `AEROBEE_LISTEN_PORT=20911`), as `AEROBEE_<KEY>_FILE`, the path of a file that holds the value
(a container's secret), and as `--set key=value`. The file comes first, a variable overrides it,
`--set` overrides both. `aerobee config` shows the values in force.

- An unknown key or an invalid value refuses to start; the message names the nearest known key.
- A key that RocketMQ has and that has no effect here is accepted, with a warning.
- A key that promises a safety or a format that this broker does not have refuses to start.
- Settings marked *live* can be changed while the broker runs, by `mqadmin updateBrokerConfig` or by
  editing the file and sending SIGHUP. A change by `mqadmin` lasts until the restart or the next
  SIGHUP: the file is the operator's and is not rewritten.

"""


def settings_page() -> str:
    """docs/settings.md."""
    known = list(known_keys().values())
    parts = [_INTRODUCTION, "## Settings with effect\n\n"]
    parts.append("| key | default | unit | meaning | |\n|---|---|---|---|---|\n")
    parts.extend(_effect_line(row) for row in known if row.effect == EFFECT)
    parts.append("\n## Where a default differs from RocketMQ's\n\n")
    parts.append("| key | here | RocketMQ | why |\n|---|---|---|---|\n")
    parts.extend(
        f"| {row.key} | {_cell(row.default)} | {row.about.upstream} | {row.about.why} |\n"
        for row in known
        if row.about.upstream is not None
    )
    parts.append("\n## Settings that refuse to start\n\n")
    parts.append("| key | only value | why another is refused |\n|---|---|---|\n")
    parts.extend(
        f"| {row.key} | {_cell(row.default)} | {row.about.meaning} |\n"
        for row in known
        if row.effect == REFUSED
    )
    parts.append("\n## Settings of RocketMQ that have no effect here\n")
    meanings = dict.fromkeys(row.about.meaning for row in known if row.effect == NO_EFFECT)
    for meaning in meanings:
        keys = [f"`{row.key}`" for row in known if row.about.meaning == meaning]
        parts.append(f"\n**{meaning[0].upper()}{meaning[1:]}**: {', '.join(keys)}\n")
    return "".join(parts)


def _effect_line(row: Known) -> str:
    marks = [
        "live" if row.about.runtime else "",
        "ours" if row.about.ours else "",
        f"also {', '.join(row.about.aliases)}" if row.about.aliases else "",
    ]
    meaning = row.about.meaning.replace("|", "\\|")
    if row.about.choices:
        meaning += f" One of {', '.join(row.about.choices)}."
    return (
        f"| {row.key} | {_cell(row.default)} | {row.about.unit} | {meaning} "
        f"| {', '.join(filter(None, marks))} |\n"
    )


def _cell(value: Value) -> str:
    return text_of(value).replace("|", "\\|") or "(empty)"
