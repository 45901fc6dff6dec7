"""How long the first messages that a stream has not read yet have waited."""

import time

from aerobee.pipeline.source.queues import DEFAULT_GROUP, Addresses, Offsets, QueueKey, pull_fields
from aerobee.pipeline.wire import Cluster
from aerobee.protocol.files.record_layout import HEAD_V4_SIZE, store_timestamp
from aerobee.protocol.wire.codes import RequestCode, ResponseCode


def waiting_seconds(
    cluster: Cluster, addresses: Addresses, offsets: Offsets
) -> dict[QueueKey, float]:
    """Since when the messages at these offsets are stored; without those that are not shown. The
    requests of a broker go out at once."""
    found = {}
    for address in sorted({addresses[key] for key in offsets if key in addresses}):
        link = cluster.link(address)
        asked = []
        for key in sorted(key for key in offsets if addresses.get(key) == address):
            ext = pull_fields(key, offsets[key], 1, DEFAULT_GROUP)
            asked.append((key, link.ask(RequestCode.PULL_MESSAGE, ext)))
        for key, answer in asked:
            command = link.take(answer)
            if command.code == ResponseCode.SUCCESS and len(command.body) >= HEAD_V4_SIZE:
                waited = time.time() - store_timestamp(command.body) / 1000
                found[key] = round(max(0.0, waited), 3)
    return found
