"""audit: every file of one or more stores checked side by side, as Spark tasks."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from aerobee.pipeline.jobs.progress import task_progress
from aerobee.pipeline.jobs.store_audit import Report, audit_parts, check_part


def audit(spark: Any, stores: Sequence[str]) -> list[Report]:
    """A report per file; the workers must see the stores under the same paths."""
    parts = [part for store in stores for part in audit_parts(store)]
    with task_progress(spark, "audit"):
        reports = spark.sparkContext.parallelize(parts, len(parts)).map(check_part).collect()
    return list(reports)


def show(reports: list[Report], console: Console) -> None:
    """What was checked, store by store, then what is wrong."""
    table = Table(title="checked")
    for name in ("store", "log files", "records", "queues", "entries", "index files", "keys"):
        table.add_column(name, justify="left" if name == "store" else "right")
    for store in dict.fromkeys(report.store for report in reports):
        cells = [store]
        for kind in ("log", "queue", "index"):
            own = [one for one in reports if one.store == store and one.kind == kind]
            cells += [str(len(own)), str(sum(one.checked for one in own))]
        table.add_row(*cells)
    console.print(table)
    findings = [finding for report in reports for finding in report.findings]
    if not findings:
        console.print("[green]no damage found[/green]")
        return
    wrong = Table(title=f"{len(findings)} findings")
    for name in ("file", "position", "problem"):
        wrong.add_column(name, overflow="fold")
    for finding in findings[:100]:
        wrong.add_row(finding.file, str(finding.position), finding.problem)
    console.print(wrong)
    if len(findings) > 100:
        print(f"... and {len(findings) - 100} more; --json has them all", file=sys.stderr)


def as_json(reports: list[Report]) -> str:
    return json.dumps([asdict(report) for report in reports], indent=1)
