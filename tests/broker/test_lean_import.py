"""What a daemon does not import, and what it leaves as it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import gc, sys
import aerobee.broker.__main__
unused = {"rich", "yaml", "http.client", "numpy._typing._array_like", "aerobee.broker.ha.election"}
print(sorted(unused & sys.modules.keys()), gc.isenabled())
with open("/proc/self/status") as status:
    print([line.split()[1] for line in status if line.startswith("Threads:")])
import rich
from numpy.typing import ArrayLike
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_a_daemon_imports_what_it_needs_and_makes_no_threads() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "[] True\n['1']\n"


STARTED = """
import asyncio, sys
from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.settings import load_settings

ports = {"listenPort": 0, "namesrvListenPort": 0, "metricsPromExporterPort": 0}
sizes = {"mappedFileSizeCommitLog": 1 << 20}
of_http = {"http.client", "prometheus_client"}

def page_of(url):
    from urllib.request import urlopen
    return urlopen(url).read()

async def main():
    app = AppBroker(load_settings(None, {"storePathRootDir": sys.argv[1], **ports, **sizes}, {}))
    await app.start()
    before = sorted(of_http & sys.modules.keys())
    url = f"http://127.0.0.1:{app.metrics_port}/metrics"
    page = await asyncio.to_thread(page_of, url)
    print(before, b"rocketmq_messages_in_total" in page, file=sys.stderr)
    await app.stop()

asyncio.run(main())
"""


def test_a_broker_that_nobody_watches_has_no_http_server(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[] True"
