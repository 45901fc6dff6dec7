"""`aerobee pipeline catalog-jar`: the catalog of topics for a Spark whose driver is not Python."""

from pathlib import Path

import click

from aerobee.pipeline.commands.common import Job, session


@click.command("catalog-jar", cls=Job)
@click.argument("out", type=click.Path(dir_okay=False))
def catalog_jar(out: str) -> None:
    """Write the catalog of topics to OUT, a jar for a Spark Connect server or spark-sql.

    In a Python driver `aerobee.spark.catalog(spark, ...)` needs none.
    """
    from aerobee.pipeline.catalog.register import CLASS, jar

    spark = session("catalog", "local[1]", ())
    Path(out).write_bytes(jar(spark))
    click.echo(f"{out}: start Spark with --jars {out} --conf spark.sql.catalog.aerobee={CLASS}")
    click.echo("    --conf spark.sql.catalog.aerobee.namesrv=HOST:9876")
    click.echo("    --conf spark.sql.python.filterPushdown.enabled=true")
