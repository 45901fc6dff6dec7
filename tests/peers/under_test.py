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

# Checks of transactions come every half minute by default: too slow to wait for in a test.
SETTINGS = {
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
