"""Modules that importing the SDK must not load."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import pkgutil, sys
import aerobee, aerobee.sync, aerobee.client
for module in pkgutil.walk_packages(aerobee.client.__path__, "aerobee.client."):
    if not module.name.startswith(("aerobee.client.cli", "aerobee.client.testing")):
        __import__(module.name)
print(sorted({"numpy", "pyarrow", "aerobee.broker", "aerobee.pipeline"} & sys.modules.keys()))
"""


def test_the_sdk_imports_neither_numpy_nor_the_broker() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
