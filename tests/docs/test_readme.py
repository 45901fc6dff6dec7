"""Every snippet of the README runs as it is written, against a real broker."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs.pages import outside_of_the_venv
from peers.aerobee_broker import AerobeeBroker
from peers.apache import STORE_SIZES
from peers.tools import free_port, heed_interrupts, wait_for

from aerobee.broker.settings import load_settings, setting_rows
from aerobee.sync import connect

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
STORE_PATH = "storePathRootDir"
NAMESRV = "127.0.0.1:9876"
AUTO = ("-o", "asyncio_mode=auto")


def blocks(language: str, containing: str) -> str:
    """The one block of this language with this text in it."""
    (found,) = [text for kind, text in BLOCKS if kind == language and containing in text]
    return str(found)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AerobeeBroker]:
    with AerobeeBroker(tmp_path_factory.mktemp("readme")) as running:
        yield running


def run(command: list[str], broker: AerobeeBroker | None = None, cwd: Path | None = None) -> str:
    url = {"AEROBEE_URL": f"mq://{broker.namesrv}"} if broker is not None else {}
    done = subprocess.run(
        command,
        env={**os.environ, **url},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}"
    return done.stdout


def test_the_first_message_from_python_arrives(broker: AerobeeBroker, tmp_path: Path) -> None:
    program = tmp_path / "first.py"
    program.write_text(blocks("python", "asyncio.run(main())"))
    assert "one coffee" in run([sys.executable, str(program)], broker)
    with connect(f"mq://{broker.namesrv}") as mq:  # and the message is done with
        assert sum(row.lag for row in mq.admin.lag("billing", "orders")) == 0


def test_the_shell_commands_of_the_readme_work(broker: AerobeeBroker) -> None:
    outputs = []
    for line in blocks("sh", "aerobee send").splitlines():
        command = line.replace("aerobee", str(Path(sys.executable).with_name("aerobee")), 1)
        outputs.append(run(["sh", "-c", command], broker))
    assert "one cake" in outputs[1]
    assert "one cake" in outputs[2]
    assert "orders" in outputs[3]


def test_the_slave_of_the_first_cluster_follows(broker: AerobeeBroker, tmp_path: Path) -> None:
    command = blocks("sh", "brokerRole=SLAVE").replace("\\\n", "").replace(NAMESRV, broker.namesrv)
    command = command.replace("10931", str(free_port(-2, 1)))
    words = command.replace("/tmp/aerobee-slave", str(tmp_path / "slave")).split()
    assert words[0] == "aerobee"
    words[0] = str(Path(sys.executable).with_name("aerobee"))
    sizes = [word for key, size in STORE_SIZES.items() for word in ("--set", f"{key}={size}")]
    run([words[0], "send", "copied", "x"], broker)
    with subprocess.Popen([*words, *sizes], stdout=subprocess.PIPE, text=True) as slave:
        try:
            wait_for(
                lambda: is_followed(run([words[0], "replicas", "--json"], broker)),
                timeout=60,
                what="the slave has its master's log",
            )
        finally:
            slave.terminate()


def is_followed(text: str) -> bool:
    """Whether the slave has all that its master has."""
    rows = json.loads(text)
    return len(rows) == 2 and rows[0]["log_end"] == rows[1]["log_end"] > 0


def test_the_test_with_the_fixture_passes(tmp_path: Path) -> None:
    (tmp_path / "test_reminder.py").write_text(blocks("python", "aerobee_broker"))
    output = run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *AUTO], cwd=tmp_path
    )
    assert "1 passed" in output


def test_make_run_starts_a_broker_that_ctrl_c_stops(tmp_path: Path) -> None:
    """With this venv, as it is. The other command, `make test`, is a step of .ci/run."""
    run_line, test_line = blocks("sh", "make run").splitlines()
    assert run_line.split()[:2] == ["make", "run"] and test_line.split()[:2] == ["make", "test"]
    settings = STORE_SIZES | {
        STORE_PATH: f"{tmp_path}",
        "listenPort": f"{free_port(-2, 1)}",
        "namesrvListenPort": f"{free_port()}",
        "metricsExporterType": "DISABLE",
    }
    environment = {f"AEROBEE_{key.upper()}": value for key, value in settings.items()}
    command = ["make", "run", f"V={sys.prefix}", "-o", f"{sys.prefix}/.installed", "ARGS="]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,
    ) as broker:
        assert broker.stdout is not None
        try:
            assert any(line.startswith("ready broker=") for line in broker.stdout)
            assert (tmp_path / "abort").exists()
            os.killpg(broker.pid, signal.SIGINT)
            wait_for(lambda: not (tmp_path / "abort").exists(), timeout=60, what="it has stopped")
            broker.wait(timeout=60)
        finally:
            if broker.poll() is None:
                os.killpg(broker.pid, signal.SIGKILL)


def test_make_help_lists_the_targets() -> None:
    assert "bench-compare" in run(["make", "help"], cwd=ROOT)


@pytest.mark.apache
def test_the_first_message_from_java_arrives(broker: AerobeeBroker, tmp_path: Path) -> None:
    from peers.apache import build

    snippet = blocks("java", "DefaultMQProducer").replace(NAMESRV, broker.namesrv)
    imports = (
        "org.apache.rocketmq.client.producer.DefaultMQProducer",
        "org.apache.rocketmq.client.producer.SendResult",
        "org.apache.rocketmq.common.message.Message",
    )
    source = "".join(f"import {name};\n" for name in imports)
    source += (
        f"class First {{ public static void main(String[] a) throws Exception {{\n{snippet}}} }}"
    )
    (tmp_path / "First.java").write_text(source)
    class_path = f"{tmp_path}:{build('5.5.0')}"
    run(["javac", "-cp", class_path, str(tmp_path / "First.java")])
    home = f"-Duser.home={tmp_path}"
    assert "SEND_OK" in run(["java", home, "-cp", class_path, "First"])


@pytest.mark.spark
def test_the_spark_snippet_in_a_venv_that_is_not_activated(
    broker: AerobeeBroker, tmp_path: Path
) -> None:
    run([str(Path(sys.executable).with_name("aerobee")), "send", "orders", "row"], broker)
    program = tmp_path / "rows.py"
    program.write_text(blocks("python", "pyspark").replace(NAMESRV, broker.namesrv))
    environment = outside_of_the_venv()
    assert shutil.which("python3", path=environment["PATH"]) != sys.executable
    done = subprocess.run(
        [sys.executable, str(program)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "|key" in done.stdout.replace(" ", ""), done.stderr[-3000:]


@pytest.mark.spark
def test_the_last_line_of_an_error_in_a_spark_program_is_ours(
    broker: AerobeeBroker, tmp_path: Path
) -> None:
    program = tmp_path / "wrong.py"
    snippet = blocks("python", "pyspark").replace(NAMESRV, broker.namesrv)
    program.write_text(snippet.replace('"subscribe", "orders"', '"subscribe", "no-such-topic"'))
    done = subprocess.run(
        [sys.executable, str(program)],
        env=outside_of_the_venv(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("aerobee: topic no-such-topic does not exist on this cluster")


def test_the_readme_tells_what_is_needed_and_what_stays() -> None:
    text = (ROOT / "README.md").read_text()
    place = re.search(r"empty: (\S+)\.", about_store_path())
    assert place is not None and f"`{place[1]}`" in text
    clean = re.search(r"^clean:.*\n\t(.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert clean is not None and not re.search(r"[~/]store|share", clean[1])
    for needed in ("`make`", "Python 3.11", "`venv`", "GB of disk", "`make clean` removes"):
        assert needed in text, needed


def test_the_readme_tells_how_many_steps_ci_has() -> None:
    lanes = (ROOT / ".ci/run").read_text()
    steps = len(re.findall(r"^    step [a-z-]+ (?:again|make) ", lanes, re.M))
    assert f"has {steps} steps" in (ROOT / "README.md").read_text()


def about_store_path() -> str:
    [row] = [row for row in setting_rows(load_settings(None, [], env={})) if row.key == STORE_PATH]
    return str(row.meaning)
