"""The same source and sink against a real Apache RocketMQ, and its refusal of exactly-once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from peers.apache import ApacheBroker
from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.apache, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module", params=["4.9.8", "5.5.0"])
def apache(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheBroker]:
    folder = tmp_path_factory.mktemp("apache")
    with ApacheBroker(request.param, folder, enablePropertyFilter="true") as running:
        yield running


def test_rows_written_to_apache_are_read_back_over_tcp_and_from_its_files(
    spark: SparkSession, apache: ApacheBroker, tmp_path: Path
) -> None:
    frame = spark.range(3000).selectExpr(
        "lpad(id, 6, '0') as value",
        "concat('k', id) as key",
        "if(id % 2 = 0, 'even', 'odd') as tags",
        "map('n', cast(id as string)) as properties",
    )
    options = {"namesrv": apache.namesrv, "topic": "rows"}
    frame.write.format("aerobee").options(**options).mode("append").save()

    def read(**more: Any) -> DataFrame:
        reader = spark.read.format("aerobee").options(namesrv=apache.namesrv, subscribe="rows")
        return reader.options(**more).load()

    expected = {(f"{n:06d}", f"k{n}", "odd" if n % 2 else "even", str(n)) for n in range(3000)}
    columns = ("cast(value as string)", "cast(key as string)", "tags", "properties['n']")
    over_tcp = {tuple(row) for row in read().selectExpr(*columns).collect()}
    assert over_tcp == expected and read().count() == 3000
    assert read(tags="odd").count() == 1500
    assert read(sql="n > 2989").count() == 10
    middle = read().selectExpr("cast(unix_millis(max(timestamp)) as string) as t").first()["t"]
    after = read(startingTimestamp=int(middle) + 1, startingOffsetsByTimestampStrategy="latest")
    assert after.count() == 0
    assert read(endingTimestamp=int(middle) + 1).count() == 3000
    apache.stop()
    files = spark.read.format("aerobee").options(path=str(apache.store), subscribe="rows").load()
    assert {tuple(row) for row in files.selectExpr(*columns).collect()} == expected
    apache.start()


def test_exactly_once_is_refused_with_the_reason_and_at_least_once_offered(
    spark: SparkSession, apache: ApacheBroker
) -> None:
    writer = spark.range(1).selectExpr("'x' as value").write.format("aerobee").mode("append")
    options = {"namesrv": apache.namesrv, "topic": "rows", "deliveryGuarantee": "exactly-once"}
    with pytest.raises(Exception, match=r"needs an Aerobee broker.*at-least-once"):
        writer.options(**options).save()
