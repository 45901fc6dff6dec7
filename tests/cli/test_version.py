"""Which hot path an installation has is shown by `aerobee --version` and by a broker's start."""

import os
import re
import subprocess
from pathlib import Path

from aerobee_command import AEROBEE
from peers.daemon import Daemon

from aerobee.broker.compiled import PATH, PURE


def test_the_version_says_which_path_is_taken() -> None:
    for pure, path in (("1", "pure Python, by AEROBEE_PURE"), (os.environ.get(PURE, ""), PATH)):
        output = subprocess.run(
            [AEROBEE, "--version"],
            env=os.environ | {PURE: pure},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert output.returncode == 0
        assert re.fullmatch(rf"aerobee, version [\d.]+ \(broker: {path}\)\n", output.stdout)


def test_a_broker_says_which_path_it_takes(tmp_path: Path) -> None:
    with Daemon(tmp_path, env={PURE: "1"}) as daemon:
        daemon.ready()
        assert daemon.stop() == 0
        log = daemon.log()
    assert '"hot_path": "pure Python, by AEROBEE_PURE"' in log
    assert PURE not in log.replace("by AEROBEE_PURE", ""), "it is taken for a setting"
