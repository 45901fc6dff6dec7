"""dead-letters: a group's dead letters as a table, chosen by SQL and sent back, each once.

The copies and the marks that they were sent are one exactly-once batch. The marks are those of
`aerobee dlq`, so both know of each other's; a run that is killed has sent all of it or nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.jobs.progress import task_progress
from aerobee.pipeline.options import CONNECTION, Options
from aerobee.pipeline.wire import Access, Cluster
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.copies import REPLAYED_FROM, SYSTEM_PROPERTIES
from aerobee.protocol.names import DLQ_PREFIX, REPLAYED_TOPIC, TEMPLATE_TOPIC
from aerobee.protocol.wire.codes import RequestCode

_MARKS: Final = {
    "topic": REPLAYED_TOPIC,
    "defaultTopic": TEMPLATE_TOPIC,
    "readQueueNums": "1",
    "writeQueueNums": "1",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Whose, which, and where to."""

    group: str
    namesrv: str
    topic: str | None = None  # None: each to where it was sent first
    sql: str | None = None  # over the view `letters`
    again: bool = False  # also those that were sent before
    dry_run: bool = False
    options: Mapping[str, str] = field(default_factory=dict)  # access keys, TLS

    @property
    def connection(self) -> dict[str, str]:
        return {"namesrv": self.namesrv, **self.options}

    def cluster(self) -> Cluster:
        return Cluster(Access.of(Options(CONNECTION, self.connection)).at_start())


@dataclass(frozen=True, slots=True)
class SentBack:
    """How many of them."""

    sent: int
    found: int
    before: int  # sent by an earlier run, or by `aerobee dlq replay`


def letters(spark: Any, job: DeadLetters) -> Any:
    """The dead letters; `topic` is where each was sent first, `reason` why it failed."""
    from pyspark.sql import functions as f

    rows = _read(spark, job, DLQ_PREFIX + job.group)
    known = f.col("properties")
    origin = f.coalesce(known[props.DLQ_ORIGIN_TOPIC], known[props.RETRY_TOPIC])
    return rows.select(
        *(f.col(name) for name in rows.columns if name != "topic"),
        origin.alias("topic"),
        known[props.LAST_FAILURE].alias("reason"),
    )


def send_back(spark: Any, job: DeadLetters) -> SentBack:
    """Those that the query chooses and that were not sent back before."""
    with job.cluster() as cluster:
        if cluster.route(DLQ_PREFIX + job.group) is None:
            return SentBack(0, 0, 0)
        has_marks = cluster.route(REPLAYED_TOPIC) is not None
    chosen = found = letters(spark, job)
    with task_progress(spark, "dead letters"):
        total = found.count()
        if has_marks and not job.again:
            marks = _read(spark, job, REPLAYED_TOPIC)
            marks = marks.selectExpr("cast(value as string) as offsetMessageId")
            chosen = found.join(marks, "offsetMessageId", "left_anti")
        pending = chosen.count()
        chosen = _chosen(spark, chosen, job.sql).cache()
        try:
            sent = chosen.count()
            if sent and not job.dry_run:
                _check_origins(chosen, job)
                _provide_marks(job)
                _publish(chosen, job)
        finally:
            chosen.unpersist()
    return SentBack(sent, total, total - pending)


def _read(spark: Any, job: DeadLetters, topic: str) -> Any:
    columns = "value,key,tags,properties,topic,timestamp,bornTimestamp,messageId,offsetMessageId"
    reader = spark.read.format("aerobee").options(subscribe=topic, **job.connection)
    return reader.option("columns", f"{columns},reconsumeTimes,broker,partition,offset").load()


def _chosen(spark: Any, rows: Any, sql: str | None) -> Any:
    if sql is None:
        return rows
    rows.createOrReplaceTempView("letters")
    chosen = spark.sql(sql)
    needed = ("value", "topic", "properties", "offsetMessageId")
    if missing := [name for name in needed if name not in chosen.columns]:
        raise OptionError(f"--sql leaves out {', '.join(missing)}: SELECT * FROM letters WHERE ...")
    return chosen


def _check_origins(chosen: Any, job: DeadLetters) -> None:
    lost = 0 if job.topic else chosen.where("topic is null or topic like '\\%%'").count()
    if lost:
        raise OptionError(
            f"nothing says where {lost} of the letters came from: --to names a topic, or leave "
            'them out with --sql "SELECT * FROM letters WHERE topic IS NOT NULL"'
        )


def _provide_marks(job: DeadLetters) -> None:
    """The topic of the marks at every broker: any may be the one that takes the batch."""
    with job.cluster() as cluster:
        held = {share.address for share in cluster.route(REPLAYED_TOPIC) or ()}
        for address in set(cluster.masters().values()) - held:
            what, code = f"making {REPLAYED_TOPIC}", RequestCode.UPDATE_AND_CREATE_TOPIC
            cluster.request(what, address, code, _MARKS)


def _publish(chosen: Any, job: DeadLetters) -> None:
    from pyspark.sql import functions as f

    system = f.array(*(f.lit(name) for name in sorted(SYSTEM_PROPERTIES)))
    own = f.map_filter("properties", lambda name, _value: ~f.array_contains(system, name))
    source = f.create_map(f.lit(REPLAYED_FROM), f.col("offsetMessageId"))
    there = [f.col(name) for name in ("key", "tags") if name in chosen.columns]
    copies = chosen.select(
        f.col("value").cast("binary").alias("value"),
        (f.lit(job.topic) if job.topic else f.col("topic")).alias("topic"),
        f.map_concat(own, source).alias("properties"),
        *there,
    )
    marks = chosen.select(
        f.col("offsetMessageId").cast("binary").alias("value"), f.lit(REPLAYED_TOPIC).alias("topic")
    )
    rows = copies.unionByName(marks, allowMissingColumns=True)
    writer = rows.write.format("aerobee").options(**job.connection)
    writer.option("deliveryGuarantee", "exactly-once").mode("append").save()
