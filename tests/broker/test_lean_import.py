"""What a daemon does not import, and what it leaves as it was."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import gc, sys
import aerobee.broker.__main__
unused = {"rich", "yaml", "http.client"}
print(sorted(unused & sys.modules.keys()), gc.isenabled())
with open("/proc/self/status") as status:
    print([line.split()[1] for line in status if line.startswith("Threads:")])
import rich
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_a_daemon_imports_what_it_needs_and_makes_no_threads() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "[] True\n['1']\n"
