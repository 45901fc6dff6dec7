"""A driver to be killed: keeps one topic as three tables, in small commits, with much upkeep.

Ends when the file `done` is there and all tables have everything.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

from spark.helpers import await_turn, session_config
from spark.lake_readers import FORMATS

from aerobee.pipeline.jobs.session import open_session
from aerobee.pipeline.jobs.table import Keeper, TableJob
from aerobee.pipeline.jobs.table_tasks import run_tasks
from aerobee.pipeline.jobs.upkeep import Upkeep


def main() -> None:
    settings = json.loads(sys.argv[1])
    config = session_config() | settings["config"]
    spark = open_session("kills", settings["master"], config=config, retries=True)
    run_tasks(spark, 2, lambda at: [at])  # starts its workers, too
    await_turn(settings)  # the tables are opened after the kill
    upkeep = Upkeep(small_files=3, keep=timedelta(0), clean_every=0.5)
    keepers = [
        Keeper(
            spark,
            TableJob(
                settings["namesrv"],
                f"{settings['root']}/{table_format}",
                settings["topic"],
                table_format=table_format,
                rows_per_commit=settings["rows_per_commit"],
                fresh=1.0,
                upkeep=upkeep,
            ),
        )
        for table_format in FORMATS
    ]
    while True:
        finishing = Path(settings["done"]).exists()
        added = 0
        for keeper in keepers:
            commit = keeper.trigger()
            added += commit.rows if commit else 0
            keeper.upkeep()
        if finishing and not added:
            break
        if not added:
            time.sleep(0.1)
    print("complete", flush=True)


main()
