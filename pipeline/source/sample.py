"""Some messages of a topic, without Spark."""

from collections.abc import Iterator

from aerobee.pipeline.columns import arrow_schema
from aerobee.pipeline.options import source_options
from aerobee.pipeline.source.puller import Range
from aerobee.pipeline.source.queues import discover, edges
from aerobee.pipeline.source.topic_ranges import TopicPlan, read_range
from aerobee.pipeline.wire import Access, Cluster


def newest_values(connection: dict[str, str], topic: str, count: int) -> Iterator[bytes]:
    """The bodies of the newest messages of each queue, about so many together."""
    options = source_options(connection | {"subscribe": topic}, streaming=False)
    with Cluster(Access.of(options).at_start()) as cluster:
        addresses = discover(cluster, options)
        first, end = edges(cluster, addresses)
    plan = TopicPlan.of(options, ("value",))
    held = sum(end[key] - first[key] for key in addresses)
    for key, address in addresses.items():
        share = -(-count * (end[key] - first[key]) // max(1, held))
        start = max(first[key], end[key] - share)
        for batch in read_range(
            Range(key, address, start, end[key]), plan, arrow_schema(("value",))
        ):
            yield from batch["value"].to_pylist()
