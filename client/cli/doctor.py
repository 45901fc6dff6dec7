"""`aerobee doctor`: the usual troubles, each with its remedy."""

from __future__ import annotations

import click

from aerobee.client.cli.common import run_loop
from aerobee.client.cli.completing import topics
from aerobee.client.cli.failures import FAILED, Failure, json_option
from aerobee.client.cli.output import print_rows
from aerobee.client.tools.doctor import Finding, examine


@click.command()
@click.option("-u", "--url", envvar="AEROBEE_URL", help="Name servers: mq://host:port[,...].")
@click.option("--topic", shell_complete=topics, help="Also check that this topic can be reached.")
@click.option("--timeout", type=float, default=3.0, show_default=True)
@json_option
def doctor(url: str | None, topic: str | None, timeout: float, as_json: bool) -> None:
    """Look for the usual troubles; exit code 1 when there is one.

    Checks name servers, routes, brokers, their disks, clocks, write state and file limits.
    """
    findings: list[Finding] = run_loop(examine(url, topic, timeout))
    rows = [
        {"": row.verdict, "checked": row.what, "found": row.finding, "remedy": row.remedy or None}
        for row in findings
    ]
    if as_json:
        keys = ("verdict", "what", "finding", "remedy")
        print_rows(
            [{key: getattr(row, key) for key in keys} for row in findings], as_json=True, empty=""
        )
    else:
        print_rows(rows, as_json=False, empty="")
    troubles = sum(row.verdict == "trouble" for row in findings)
    if troubles:
        raise Failure(f"{troubles} trouble(s) found", FAILED)
