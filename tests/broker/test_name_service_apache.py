"""Name services across projects: Apache's broker with ours, our broker with Apache's."""

import json
from functools import partial
from pathlib import Path

import pytest
from peers.apache import ApacheBroker
from peers.daemon import Daemon
from peers.tools import wait_for
from peers.wire import Wire, has_route

pytestmark = pytest.mark.apache


def knows(namesrv: str, topic: str, brokers: dict[str, str]) -> bool:
    return brokers_of(namesrv, topic) == brokers


def brokers_of(namesrv: str, topic: str) -> dict[str, str]:
    """Broker name -> address of its master, from the route of a topic."""
    with Wire(namesrv) as wire:
        answer = wire.request(105, {"topic": topic, "acceptStandardJsonOnly": "true"}, version=409)
        if answer.code != 0:
            return {}
        return {
            broker["brokerName"]: broker["brokerAddrs"]["0"]
            for broker in json.loads(answer.body)["brokerDatas"]
        }


# 5.5.0 cannot register in the compressed form, not even with its own name server.
@pytest.mark.parametrize(("version", "compressed"), [("4.9.8", "true"), ("5.5.0", "false")])
def test_brokers_and_name_servers_of_both_projects_know_each_other(
    tmp_path: Path, version: str, compressed: str
) -> None:
    with Daemon(tmp_path / "names", "--namesrv") as names:
        ours = names.ready()["namesrv"]
        apache = ApacheBroker(version, tmp_path / "apache", compressedRegister=compressed)
        apache.settings["namesrvAddr"] = f"{apache.namesrv};{ours}"
        with (
            apache,
            Daemon(
                tmp_path / "broker",
                namesrvAddr=f"{ours};{apache.namesrv}",
                brokerName="broker-b",
                compressedRegister=compressed,
            ) as broker,
        ):
            place = broker.ready()["broker"]
            both = {"broker-a": apache.broker, "broker-b": place}
            for namesrv in (ours, apache.namesrv):
                wait_for(
                    partial(knows, namesrv, "TBW102", both),
                    timeout=30,
                    what=f"{namesrv} knows both brokers",
                )
            with Wire(place) as wire:
                send = dict(zip("abcdefgh", ("g", "fresh", "TBW102", 4, 0, 0, 0, 0), strict=True))
                assert wire.request(310, send, b"hello").code == 0
            for namesrv in (ours, apache.namesrv):
                wait_for(
                    partial(knows, namesrv, "fresh", {"broker-b": place}),
                    timeout=5,
                    what=f"{namesrv} knows the new topic",
                )
            assert broker.stop() == 0
            for namesrv in (ours, apache.namesrv):
                assert not has_route(namesrv, "fresh")
            apache.kill()
            wait_for(
                lambda: brokers_of(ours, "TBW102") == {},
                timeout=10,
                what="ours has dropped the broker whose connection is gone",
            )
