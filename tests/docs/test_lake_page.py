"""docs/lake.md as a new user follows it: every block is run, in order, against a real broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from peers.aerobee_broker import AerobeeBroker

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "docs" / "lake.md").read_text(), re.DOTALL)
NAMESRV = "127.0.0.1:9876"
# What a step must have printed, by a word of its command.
EXPECTED = {
    "cat orders.json": ['"amount"', '"required"', "from 500 messages; 1 are no JSON objects"],
    "--schema orders.json": ["500 rows", "1 rejected", "501 messages added"],
    "questions.py": ["coffee", "not an order at all", "JSON is malformed"],
    "dashboard.py": ["see dashboard.png"],
    "whole.py": ["|product|count|", "coffee"],
    "others.py": ["501"],
}


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_page_from_topic_to_dashboard(tmp_path: Path) -> None:
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    said = {}
    with AerobeeBroker(tmp_path / "broker") as broker:
        for kind, text in BLOCKS:
            code = text.replace(NAMESRV, broker.namesrv)
            if kind == "python":
                name = code.splitlines()[0].removeprefix("# ")
                (tmp_path / name).write_text(code)
            elif kind == "sh":
                done = subprocess.run(
                    ["sh", "-ec", code],
                    cwd=tmp_path,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=300,
                )
                assert done.returncode == 0, f"{code}\n{done.stdout[-4000:]}"
                said[code] = done.stdout
    for word, texts in EXPECTED.items():
        (output,) = [output for code, output in said.items() if word in code]
        for text in texts:
            assert text in output, f"{word}: {text!r} is not in\n{output}"
    assert (tmp_path / "dashboard.png").stat().st_size > 1000
