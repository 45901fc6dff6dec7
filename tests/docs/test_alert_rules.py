"""The alert rules that are shipped: whole, explained, and about metrics that a broker serves."""

import re
import urllib.request
from pathlib import Path

from peers.daemon import Daemon
from peers.tools import free_port

ROOT = Path(__file__).resolve().parents[2]
RULES = (ROOT / "conf" / "prometheus-rules.yml").read_text()
NOT_OURS = {"up", "rate", "increase", "unless", "or", "on", "offset", "node_id", "consumer_group"}


def rules() -> dict[str, str]:
    """The text of each rule by its name."""
    parts = re.split(r"^      - alert: (\w+)\n", RULES, flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def metrics_of(rule: str) -> set[str]:
    """The metrics that a rule's expression names."""
    expression = re.search(r"expr: (.*?)\n        (?:for|labels):", rule, re.S)
    assert expression is not None, rule
    bare = re.sub(r'\{[^}]*\}|\[\w+\]|"[^"]*"|offset \w+', " ", expression[1])
    return set(re.findall(r"[a-z][a-z_]+", bare)) - NOT_OURS


def test_every_rule_is_whole() -> None:
    assert len(rules()) == RULES.count("- alert:") >= 10
    assert "\t" not in RULES
    for name, rule in rules().items():
        assert re.search(r"labels: \{severity: (critical|warning|info)\}", rule), name
        assert re.search(r'annotations: \{summary: "[^"]+"\}', rule), name


def test_every_rule_is_about_metrics_that_a_broker_serves(tmp_path: Path) -> None:
    port = free_port()
    with Daemon(tmp_path, metricsPromExporterPort=str(port)) as daemon:
        daemon.ready()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            served = set(re.findall(r"^# TYPE (\S+)", answer.read().decode(), re.M))
        assert daemon.stop() == 0
    for name, rule in rules().items():
        assert metrics_of(rule) <= served, name
        assert metrics_of(rule) or name == "AerobeeDown"


def test_the_guide_explains_every_rule() -> None:
    guide = (ROOT / "docs" / "operators-guide.md").read_text()
    assert [name for name in rules() if f"`{name}`" not in guide] == []
