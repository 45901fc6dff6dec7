"""What an operator sees of failover: commands, doctor, metrics, and settings that do not fit."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from aerobee_command import aerobee
from peers.in_process import running_broker
from peers.tools import free_port
from prometheus_client.parser import text_string_to_metric_families
from waiting import until

from aerobee import connect
from aerobee.broker.settings import SettingsError, load_settings
from aerobee.client.tools.doctor import Finding, examine_cluster
from ha.etcd_server import EtcdServer
from ha.failover_cluster import Cluster


async def scrape(port: int) -> dict[str, float]:
    """The broker's own figures, by name; of several the last."""

    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            text: str = answer.read().decode()
            return text

    families = text_string_to_metric_families(await asyncio.to_thread(read))
    return {sample.name: sample.value for family in families for sample in family.samples}


URL = {"etcdEndpoints": "http://127.0.0.1:2379"}


@pytest.mark.etcd
@pytest.mark.timeout(180)
async def test_commands_show_the_set_and_that_etcd_is_unreachable(tmp_path: Path) -> None:
    with Cluster(tmp_path, 2) as cluster:
        cluster.name_each_other()
        master = cluster.wait_in_sync(1, 2)
        url = f"mq://{cluster.brokers[master].namesrv}"

        async def rows() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = (await aerobee("replicas", "--json", url=url)).json
            return found

        async def findings() -> list[Finding]:
            async with connect(url) as mq:
                return [each async for each in examine_cluster(mq) if "failover" in each.what]

        async def both_are_known() -> bool:
            return [row.get("in_set") for row in await rows()] == ["yes", "yes"]

        await until(both_are_known, 60)
        assert sorted(row["id"] for row in await rows()) == [1, 2]
        found = await findings()
        assert [each.verdict for each in found] == ["ok", "ok"] and "in sync: 1, 2" in found[
            0
        ].finding
        cluster.etcd.stop()
        await until(lambda: cluster.away_s(1) and cluster.away_s(2), 60)
        assert all("etcd has not answered" in str(row["note"]) for row in await rows())
        assert {each.verdict for each in await findings()} == {"trouble"}


@pytest.mark.etcd
async def test_metrics_tell_of_the_set_and_of_etcd(tmp_path: Path) -> None:
    with EtcdServer(tmp_path / "etcd") as etcd:
        settings: dict[str, Any] = {"etcd_endpoints": etcd.url, "broker_id": 1}
        settings |= {"metrics_exporter_type": "PROM", "metrics_prom_exporter_port": free_port()}
        async with running_broker(tmp_path / "broker", **settings) as app:

            async def leads() -> bool:
                try:
                    return (await scrape(app.metrics_port))["aerobee_failover_leads"] == 1
                except (OSError, KeyError):  # it restarts, as the master
                    return False

            await until(leads, 60)
            figures = await scrape(app.metrics_port)
            assert figures["aerobee_failover_in_sync"] == 1
            assert figures["aerobee_failover_epoch"] == 1
            assert figures["aerobee_failover_elections_won"] == 1
            assert figures["aerobee_arbiter_unreachable_seconds"] == 0
            etcd.stop()

            async def is_away() -> bool:
                return (await scrape(app.metrics_port))["aerobee_arbiter_unreachable_seconds"] > 0

            await until(is_away, 60)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (URL, "brokerId above 0"),
        (URL | {"brokerId": 1, "haListenPort": -1}, "haListenPort"),
        ({"minInSyncReplicas": 2}, "needs etcdEndpoints"),
        ({"etcdEndpoints": "127.0.0.1:2379", "brokerId": 1}, "http://10.0.0.1:2379"),
        ({"etcdEndpoints": "http://me:secret@10.0.0.1:2379", "brokerId": 1}, "etcdPassword"),
        (URL | {"brokerId": 1, "etcdPrefix": "x"}, "/NAME"),
    ],
)
def test_settings_of_failover_that_do_not_fit_are_reported(
    given: dict[str, Any], told: str
) -> None:
    with pytest.raises(SettingsError, match=told):
        load_settings(None, given, {})


def test_the_loss_window_of_answers_before_the_copy_is_logged_at_the_start() -> None:
    given = URL | {"brokerId": 1, "failoverAck": "MASTER"}
    warnings = load_settings(None, given, {}).warnings
    assert any("a failover loses" in warning for warning in warnings)
