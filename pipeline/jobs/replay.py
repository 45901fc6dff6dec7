"""replay: messages of a table or a store sent again, by time range, at a rate, in their order.

At least once it is one write. Exactly once it is a sequence of batches, each published in one step
that the broker's ledger remembers: a run after a kill sends the rest.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.jobs.messages import Chosen
from aerobee.pipeline.jobs.progress import rows_progress, task_progress
from aerobee.pipeline.jobs.resume import Plan, resumed, state_folder
from aerobee.pipeline.jobs.row_by_row import is_row_by_row
from aerobee.pipeline.jobs.slices import Batch, cut_batches, ends_of
from aerobee.pipeline.options import sink_options
from aerobee.pipeline.wire import Access, Cluster

Change = Callable[[Any], Any]  # a DataFrame of messages to one of what is sent
ROWS_PER_BATCH: Final = 500_000
PACE_SECONDS: Final = 2.0  # of a batch where there is a rate
SENT: Final = ("value", "topic", "key", "tags", "properties", "flag")


@dataclass(frozen=True, slots=True)
class Replay:
    """Which messages go where."""

    source: str
    namesrv: str
    topic: str | None = None  # None: each to the topic it came from
    only: str | None = None  # of these topics, separated by commas
    start: datetime | None = None
    end: datetime | None = None
    rate: int | None = None  # messages per second
    same_queues: bool = False
    exactly_once: bool = False
    sql: str | None = None  # over the view `messages`; what it selects is sent
    dry_run: bool = False
    rows_per_batch: int = ROWS_PER_BATCH
    state: str | None = None  # the folder of plans
    again: bool = False  # also what was sent before
    function: str | None = None  # FILE.py:NAME instead of sql; its name is part of the job's
    options: Mapping[str, str] = field(default_factory=dict)  # of the sink: access keys, TLS

    @property
    def connection(self) -> dict[str, str]:
        return {"namesrv": self.namesrv, **self.options}

    @property
    def chosen(self) -> Chosen:
        return Chosen(self.source, self.only, self.start, self.end)

    def as_json(self) -> dict[str, Any]:
        """The identity of the job: without the rate and the place where Spark runs."""
        more = {"sql": self.sql, "function": self.function, "same_queues": self.same_queues}
        return self.chosen.as_json() | {"namesrv": self.namesrv, "topic": self.topic} | more


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a run."""

    sent: int
    before: int = 0  # by earlier runs of the same job


def selected(spark: Any, job: Replay) -> Any:
    """The source's messages of the topics and times."""
    return job.chosen.all(spark)


def replay(spark: Any, job: Replay, change: Change | None = None) -> Replayed:
    """How many messages were sent; of a dry run: would be."""
    if job.sql:
        change = _query(spark, job.sql)
    if job.exactly_once:
        return _in_batches(spark, job, change)
    messages = changed(selected(spark, job), change)
    with task_progress(spark, "replay"):
        count = int(messages.count())
        if not job.dry_run:
            _writer(_ordered(messages, job), job).mode("append").save()
    return Replayed(count)


def _query(spark: Any, sql: str) -> Change:
    def run(messages: Any) -> Any:
        messages.createOrReplaceTempView("messages")
        return spark.sql(sql)

    return run


def changed(messages: Any, change: Change | None) -> Any:
    """What is made of the messages; OptionError when no message can be made of that."""
    rows = change(messages) if change else messages
    if "value" not in rows.columns:
        raise OptionError(
            f"{', '.join(rows.columns)} are selected: a message needs a value, e.g. "
            "SELECT *, ... FROM messages"
        )
    return rows


def _in_batches(spark: Any, job: Replay, change: Change | None) -> Replayed:
    access = Access.of(sink_options(job.connection)).at_start()
    with (
        Cluster(access) as cluster,
        resumed(state_folder(job.state), "replay", job.as_json(), cluster, again=job.again) as plan,
    ):
        done = plan.done(cluster)
        _extend(spark, job, change, plan, done)
        before = sum(batch.rows for batch in plan.batches[:done])
        pending = plan.batches[done:]
        if job.dry_run:
            return Replayed(_counted(spark, job, change, pending), before)
        plan.save()
        sent = 0
        with rows_progress(spark, "replay", sum(batch.rows for batch in pending)) as step:
            began = time.monotonic()
            for number, batch in enumerate(pending, done):
                rows = changed(job.chosen.of(spark, batch), change)
                _wait(began, sent, job.rate)
                _publish(_ordered(rows, job), job, plan.query, number)
                sent += batch.rows
                step(batch.rows)
        return Replayed(sent, before)


def _counted(spark: Any, job: Replay, change: Change | None, batches: list[Batch]) -> int:
    """How many messages the batches would send."""
    count = 0
    with rows_progress(spark, "counting", sum(batch.rows for batch in batches)) as step:
        for batch in batches:
            count += int(changed(job.chosen.of(spark, batch), change).count())
            step(batch.rows)
    return count


def _extend(spark: Any, job: Replay, change: Change | None, plan: Plan, done: int) -> None:
    """Adds what came into the source since the plan was made. A sum over all is not a sum of each
    part: such a plan has one batch, which is sent as it was planned."""
    rows: int | None = job.rows_per_batch
    if change and not is_row_by_row(changed(job.chosen.all(spark), change)):
        rows = None
    elif job.rate:
        rows = min(job.rows_per_batch, max(1, int(job.rate * PACE_SECONDS)))
    if rows is None and done < len(plan.batches):
        return
    with task_progress(spark, "planning"):
        new = cut_batches(job.chosen.counted(spark), rows, ends_of(plan.batches))
    if rows is None and plan.batches and new:
        raise OptionError(
            "what looks at more than one row was sent of all messages at once, and there are "
            f"{new[0].rows} more now: --again sends it of all of them"
        )
    plan.batches += new


def _wait(began: float, sent: int, rate: int | None) -> None:
    if rate:
        time.sleep(max(0.0, began + sent / rate - time.monotonic()))


def _publish(rows: Any, job: Replay, query: str, number: int) -> None:
    writer = _writer(rows, job).option("deliveryGuarantee", "exactly-once")
    writer.option("txnAppId", query).option("txnVersion", number).mode("append").save()


def _writer(messages: Any, job: Replay) -> Any:
    columns = [*SENT, "partition"] if job.same_queues else [*SENT]
    there = [name for name in columns if name in messages.columns]
    writer = messages.select(*there).write.format("aerobee").options(**job.connection)
    if job.topic:
        writer = writer.option("topic", job.topic)
    if job.rate and not job.exactly_once:
        writer = writer.option("rowsPerSecond", job.rate)
    return writer


def _ordered(messages: Any, job: Replay) -> Any:
    """By store time, through one writer that keeps the pace, or by queue offset; as far as the
    rows still have these columns."""
    if job.rate:
        order = _among(messages, "timestamp", "topic", "partition", "offset")
        return (messages.orderBy(*order) if order else messages).coalesce(1)
    queue = _among(messages, "topic", "broker", "partition")
    order = _among(messages, "topic", "broker", "partition", "offset")
    if "offset" not in order or not queue:
        return messages
    return messages.repartition(*queue).sortWithinPartitions(*order)


def _among(messages: Any, *names: str) -> list[str]:
    return [name for name in names if name in messages.columns]
