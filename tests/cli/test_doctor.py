"""`aerobee doctor` and a broker's disk: trouble is what the broker refuses, not a share alone."""

import os

import pytest
from aerobee_command import aerobee

from aerobee.broker.store.refusals import Cause
from aerobee.testing import EmbeddedBroker


async def findings(url: str, code: int) -> dict[str, dict[str, str]]:
    done = await aerobee("doctor", "--json", url=url, code=code)
    return {row["what"].rpartition(": ")[2]: row for row in done.json}


async def test_doctor_tells_why_a_broker_refuses_sends(aerobee_broker: EmbeddedBroker) -> None:
    store = aerobee_broker.app.broker.store
    store.refusals.set(Cause.SYNC_FAILED, "a sync has failed: start the broker again")
    sends = (await findings(aerobee_broker.url, code=1))["sends"]
    assert sends["verdict"] == "trouble"
    assert sends["finding"] == "they are refused: a sync has failed: start the broker again"


async def test_doctor_warns_of_a_full_disk_on_which_the_broker_still_takes_sends(
    aerobee_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = list(os.statvfs("/"))
    facts[2:5] = [1000, 50, 50]  # f_blocks, f_bfree, f_bavail
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(facts))
    found = await findings(aerobee_broker.url, code=0)
    assert found["disk"]["verdict"] == "warning" and found["disk"]["finding"] == "95% used"
    assert "sends" not in found
