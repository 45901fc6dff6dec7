"""The broker that the client tests are about.

By default that is an ``aerobee broker`` process. ``TEST_BROKER=4.9.8`` or ``5.5.0`` puts Apache
RocketMQ in its place: what fails there as well is the test's fault, not ours.
"""

from __future__ import annotations

import os
from pathlib import Path

from peers.aerobee_broker import AerobeeBroker
from peers.apache import ApacheBroker

Broker = AerobeeBroker | ApacheBroker
BROKER = os.environ.get("TEST_BROKER", "aerobee")

# Upstream's times are too long to wait for in a test: half a minute between checks of transactions,
# 10 s before the first retry (level 3).
SETTINGS = {
    "messageDelayLevel": "1s 2s 3s 6s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "enablePropertyFilter": "true",
    "traceTopicEnable": "true",
    "recallMessageEnable": "true",
}


def make_broker(folder: Path, **settings: str) -> Broker:
    """The broker under test, not yet started."""
    if BROKER == "aerobee":
        return AerobeeBroker(folder, **SETTINGS | settings)
    return ApacheBroker(BROKER, folder, **SETTINGS | settings)
