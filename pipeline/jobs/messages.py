"""Where a job takes messages from: a table, an archive, or the files of a broker's store."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aerobee.pipeline.jobs.archive import read_archive
from aerobee.pipeline.jobs.slices import COUNTED, Batch, condition
from aerobee.pipeline.lake.opening import place


@dataclass(frozen=True, slots=True)
class Chosen:
    """Messages of a source, by topic and store time."""

    source: str
    only: str | None = None  # of these topics, separated by commas
    start: datetime | None = None
    end: datetime | None = None

    def all(self, spark: Any) -> Any:
        return self._narrowed(self._opened(spark))

    def counted(self, spark: Any) -> Any:
        """Only the columns by which messages are counted and cut."""
        rows = self._opened(spark, columns=",".join(COUNTED))
        return self._narrowed(rows).select(*COUNTED)

    def of(self, spark: Any, batch: Batch) -> Any:
        """The messages of a batch; files and days outside its times are not read."""
        rows = self._opened(
            spark, startingTimestamp=str(batch.first_ms), endingTimestamp=str(batch.last_ms + 1)
        )
        first, last = (
            datetime.fromtimestamp(ms / 1000, UTC) for ms in (batch.first_ms, batch.last_ms)
        )
        return _in_days(self._narrowed(rows), first, last).where(condition(batch.slices))

    @property
    def is_store(self) -> bool:
        return (Path(self.source) / "commitlog").is_dir()

    def as_json(self) -> dict[str, str | None]:
        """The identity of the choice."""
        times = {"start": _text(self.start), "end": _text(self.end)}
        return {"source": place(self.source), "only": self.only, **times}

    def _opened(self, spark: Any, **of_store: str) -> Any:
        if not self.is_store:
            return read_archive(spark, self.source)
        rows = spark.read.format("aerobee").option("path", self.source).options(**of_store).load()
        return rows.selectExpr("*", "to_date(timestamp) as date")

    def _narrowed(self, messages: Any) -> Any:
        from pyspark.sql import functions as f

        if self.only:
            topics = [name.strip() for name in self.only.split(",")]
            messages = messages.where(f.col("topic").isin(topics))
        if self.start:
            messages = messages.where(f.col("timestamp") >= self.start)
        if self.end:
            messages = messages.where(f.col("timestamp") < self.end)
        return _in_days(messages, self.start, self.end)


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).isoformat()


def _in_days(messages: Any, start: datetime | None, end: datetime | None) -> Any:
    """Without the days that lie outside. They are counted in the zone of the archive's session,
    which may be a day off from UTC; a table that is not cut by days has none."""
    from pyspark.sql import functions as f

    if start:
        first = start.astimezone(UTC).date() - timedelta(days=1)
        messages = messages.where(f.col("date").isNull() | (f.col("date") >= first))
    if end:
        last = end.astimezone(UTC).date() + timedelta(days=1)
        messages = messages.where(f.col("date").isNull() | (f.col("date") <= last))
    return messages
