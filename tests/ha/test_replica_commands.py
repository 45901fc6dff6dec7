"""`aerobee replicas` and `aerobee promote` on real processes, under a steady producer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aerobee_command import aerobee
from waiting import until

from ha.processes import Producer, log_files, master_of, slave_of, wait_in_step
from ha.test_killed import check, queue

pytestmark = pytest.mark.timeout(180)


async def rows_of(namesrv: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await aerobee("replicas", "--json", url=f"mq://{namesrv}")).json
    return rows


async def test_replicas_shows_how_much_each_broker_has(tmp_path: Path) -> None:
    with (
        master_of(tmp_path) as master,
        slave_of(tmp_path, master.namesrv) as one,
        slave_of(tmp_path, master.namesrv, 2) as two,
    ):
        producer = Producer(master.broker)
        producer.start()
        producer.acknowledge(50)
        producer.stop()
        wait_in_step(one.broker, master.broker)
        wait_in_step(two.broker, master.broker)

        async def are_in_sync() -> bool:
            return [row["in_sync"] for row in await rows_of(master.namesrv)] == [None, "yes", "yes"]

        await until(are_in_sync, 60)
        rows = await rows_of(master.namesrv)
        assert [row["role"] for row in rows] == ["ASYNC_MASTER", "SLAVE", "SLAVE"]
        assert [row["behind_bytes"] for row in rows] == [None, 0, 0]
        assert [row["behind_s"] for row in rows] == [None, 0, 0]
        assert {row["epoch"] for row in rows} == {"1"}
        assert rows[0]["note"].startswith("answers before the copy: 0 bytes")
        two.kill()

        async def is_missed() -> bool:
            rows = await rows_of(master.namesrv)
            return [row["id"] for row in rows] == [0, 1] or rows[2]["in_sync"] == "no"

        await until(is_missed, 60)


async def test_a_promotion_by_hand_after_a_kill_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """And again, back to the first: each time what was acknowledged is there, with no gap."""
    sync = {"brokerRole": "SYNC_MASTER", "slaveTimeout": "3000"}
    with master_of(tmp_path, **sync) as one, slave_of(tmp_path, one.namesrv) as two:
        producer = Producer(one.broker)
        producer.start()
        producer.acknowledge(200)
        one.kill()
        promoted = await aerobee(
            "promote", two.broker, "--yes", "--json", url=f"mq://{two.namesrv}"
        )
        assert promoted.json["epoch"] == 2
        producer.address = two.broker
        one.settings |= {"brokerRole": "SLAVE", "brokerId": "2", "namesrvAddr": two.namesrv}
        one.start()
        producer.acknowledge(200)
        two.kill()
        await aerobee("promote", one.broker, "--yes", url=f"mq://{one.namesrv}")
        producer.address = one.broker
        two.settings |= {"namesrvAddr": one.namesrv}  # it hears there that it is no master now
        two.start()
        producer.acknowledge(100)
        producer.stop()
        wait_in_step(two.broker, one.broker)
        check(producer, one.broker, two.broker)
        for queue_id in range(2):
            found = queue(one.broker, queue_id)
            assert sorted(found) == list(range(len(found)))
        one.stop()
        two.stop()
        assert log_files(one.store) == log_files(two.store)


async def test_promote_says_why_not(tmp_path: Path) -> None:
    with master_of(tmp_path) as master, slave_of(tmp_path, master.namesrv) as slave:

        async def follows() -> bool:
            rows = await rows_of(master.namesrv)
            return [row["in_sync"] for row in rows] == [None, "yes"]

        await until(follows, 60)
        url = f"mq://{master.namesrv}"
        refused = await aerobee("promote", slave.broker, "--yes", url=url, code=1)
        assert "which is up: stop it first" in refused.err
        refused = await aerobee("promote", master.broker, "--yes", url=url, code=1)
        assert "this broker is ASYNC_MASTER already" in refused.err


async def test_doctor_looks_at_slaves_and_at_names_without_a_master(tmp_path: Path) -> None:
    with master_of(tmp_path) as master, slave_of(tmp_path, master.namesrv) as slave:
        url = f"mq://{master.namesrv}"

        async def findings(url: str, code: int) -> dict[str, dict[str, str]]:
            result = await aerobee("doctor", "--json", url=url, code=code)
            return {row["what"]: row for row in json.loads(result.out)}

        async def follows() -> bool:
            rows = await rows_of(master.namesrv)
            return [row["in_sync"] for row in rows] == [None, "yes"]

        await until(follows, 60)
        found = (await findings(url, 0))["broker pair: replication"]
        assert found["verdict"] == "ok" and "slave 1 follows" in found["finding"]
        master.kill()

        async def is_missed() -> bool:
            try:
                found = await findings(f"mq://{slave.namesrv}", 1)
            except AssertionError:  # it follows still
                return False
            return found["broker pair: replication"]["verdict"] == "trouble"

        await until(is_missed, 60)
        found = (await findings(f"mq://{slave.namesrv}", 1))["master of pair"]
        assert "aerobee promote" in found["remedy"]
