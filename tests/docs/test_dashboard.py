"""The Grafana dashboard that is shipped: whole, and about metrics that a broker serves."""

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from peers.daemon import Daemon
from peers.tools import free_port

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "conf" / "grafana-dashboard.json").read_text())
METRIC = re.compile(r"\b((?:rocketmq|aerobee)_[a-z_]+)\{([^}]*)\}")
KINDS = {"row", "stat", "timeseries"}  # panels that Grafana itself brings


def expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


def served(folder: Path) -> dict[str, set[str]]:
    """The names of the samples that a broker may serve, by the kinds of its families."""
    port = free_port()
    with Daemon(folder, metricsPromExporterPort=str(port)) as daemon:
        daemon.ready()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            types = dict(re.findall(r"^# TYPE (\S+) (\S+)", answer.read().decode(), re.M))
        assert daemon.stop() == 0
    buckets = {f"{name}_bucket" for name, kind in types.items() if kind == "histogram"}
    return {"all": {*types} | buckets, "counters": {n for n, k in types.items() if k == "counter"}}


def lost(ours: Any, read: Any, at: str = "") -> list[str]:
    """Where what Grafana's model has read is not what we wrote."""
    if isinstance(ours, dict) and isinstance(read, dict):
        missing = [f"{at}.{key}" for key in ours.keys() - read.keys()]
        kept = [(ours[key], read[key], f"{at}.{key}") for key in ours.keys() & read.keys()]
    elif isinstance(ours, list) and isinstance(read, list) and len(ours) == len(read):
        missing = []
        kept = [
            (one, other, f"{at}[{n}]")
            for n, (one, other) in enumerate(zip(ours, read, strict=True))
        ]
    else:
        return [] if ours == read else [at]
    return missing + [place for each in kept for place in lost(*each)]


def test_grafana_reads_all_that_is_written_in_it() -> None:
    """By Grafana's own model of a dashboard, its panels and its Prometheus queries."""
    register_default_plugins()
    read = Dashboard.from_json(json.loads(json.dumps(DASHBOARD)))
    assert lost(DASHBOARD, json.loads(JSONEncoder().encode(read))) == []
    unknown = DASHBOARD | {"panels": [DASHBOARD["panels"][1] | {"tilte": "a slip"}]}
    read = Dashboard.from_json(json.loads(json.dumps(unknown)))
    assert lost(unknown, json.loads(JSONEncoder().encode(read))) == [".panels[0].tilte"]


def test_every_panel_is_whole_and_none_lies_over_another() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids)) >= 20
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        assert panel["type"] in KINDS and panel["title"]
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
        for target in panel.get("targets", ()):
            assert target["expr"].count("(") == target["expr"].count(")")
            assert target["datasource"]["uid"] == "${datasource}"  # chosen by who imports it
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$(?!__)\{?(\w+)", json.dumps(DASHBOARD["panels"])))
    assert used <= variables == {"datasource", "cluster", "node"}


def test_every_panel_is_about_metrics_that_a_broker_serves(tmp_path: Path) -> None:
    known = served(tmp_path)
    for expression in expressions():
        found = METRIC.findall(expression)
        assert found, expression
        for name, selector in found:
            assert name in known["all"], name
            assert 'cluster=~"$cluster",node_id=~"$node"' in selector, expression
            is_rate = re.search(rf"(rate|increase)\({name}\{{", expression) is not None
            is_counted = name in known["counters"] or name.endswith("_bucket")
            assert is_rate <= is_counted, expression
