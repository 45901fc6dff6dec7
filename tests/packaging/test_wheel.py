"""What a user gets from `pip install`: wheel and sdist hold what they should, and it runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from peers.aerobee_broker import AerobeeBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
SDK_PAGE = (ROOT / "docs/sdk.md").read_text()
SDK_PROGRAM = """
import sys
from aerobee import JSON, Verdict, Worker
from aerobee.sync import connect

with connect(sys.argv[1], serializer=JSON) as mq:
    with mq.transactions("orders", group="t", check=lambda message: Verdict.COMMIT) as begun:
        with begun.begin({"n": "one", "rest": "x" * 9999}):
            pass
    with mq.consumer("orders", group="g") as inbox:
        message = inbox.get(timeout=20)
        message.ack()
        print("got", message.value["n"])
"""
REQUIRED = {
    "aerobee/__init__.py",
    "aerobee/py.typed",
    "aerobee/sync.py",
    "aerobee/testing.py",
    "aerobee/broker/daemon/app.py",
    "aerobee/broker/store/log/commitlog.py",
    "aerobee/client/__init__.py",
    "aerobee/client/console/static/app.js",
    "aerobee/client/console/static/console.css",
    "aerobee/client/console/static/index.html",
    "aerobee/conf/broker.conf",
    "aerobee/conf/prometheus-rules.yml",
    "aerobee/pipeline/arrow.py",
    "aerobee/protocol/files/record.py",
    "aerobee/systemd/aerobee-broker.service",
    "pyspark_aerobee.py",
}


def run(
    *command: object, cwd: Path | None = None, environment: dict[str, str] | None = None
) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh clone, as a user has it."""
    clone = tmp_path_factory.mktemp("clone") / "aerobee"
    run("git", "clone", "-q", ROOT, clone)
    return clone


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", out, source)
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_every_package_and_data_file(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert names >= REQUIRED
    assert not [name for name in names if name.startswith(("tests/", "bench/", "src/"))]


def test_the_wheel_has_the_compiled_part(wheel: Path) -> None:
    names = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    assert len(names) == 1 and names[0].startswith("aerobee/broker/compiled/_hot.")
    assert not wheel.name.endswith("py3-none-any.whl")


def test_without_a_compiler_the_wheel_is_pure_python(source: Path, tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps", "-w", tmp_path, source)
    said = run(*pip, environment={"CC": "/bin/false"})
    (built,) = tmp_path.glob("*.whl")
    assert built.name.endswith("py3-none-any.whl")
    assert "the compiled part could not be built" in said
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    run(tmp_path / "venv/bin/python", "-m", "pip", "install", "-q", "click", "msgspec")
    run(tmp_path / "venv/bin/python", "-m", "pip", "install", "-q", "--no-deps", built)
    output = run(tmp_path / "venv/bin/aerobee", "--version", cwd=tmp_path)
    assert "(broker: pure Python)" in output


def test_every_module_of_the_source_is_in_the_wheel(source: Path, wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {
        f"aerobee/{file.relative_to(source)}"
        for folder in ("broker", "client", "protocol", "pipeline")
        for file in (source / folder).rglob("*.py")
    }
    assert modules - names == set()


def test_the_sdist_builds_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    backend = "import hatchling.build, sys; hatchling.build.build_sdist(sys.argv[1])"
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    run(python, "-m", "pip", "install", "-q", "hatchling>=1.26")
    run(python, "-c", backend, tmp_path, cwd=source)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, unpacked)
    (again,) = tmp_path.glob("*.whl")
    assert set(zipfile.ZipFile(again).namelist()) == set(zipfile.ZipFile(wheel).namelist())


def test_the_metadata_names_the_pythons_that_ci_tests() -> None:
    """Of both distributions."""
    (matrix,) = re.findall(r"python: \[(.+)\]", (ROOT / ".github/workflows/ci.yml").read_text())
    tested = re.findall(r"\d+\.\d+", matrix)
    for file in (ROOT / "pyproject.toml", ROOT / "sdk/pyproject.toml"):
        project = tomllib.loads(file.read_text())["project"]
        prefix = "Programming Language :: Python :: "
        named = [each.removeprefix(prefix) for each in project["classifiers"] if prefix in each]
        assert named == tested and project["requires-python"] == f">={tested[0]}"


def test_the_installed_command_runs_outside_the_source_tree(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    pip = (tmp_path / "venv/bin/python", "-m", "pip", "install", "-q")
    run(*pip, "-c", ROOT / "constraints.txt", wheel)
    listed = run(tmp_path / "venv/bin/aerobee", "config", cwd=tmp_path)
    assert "listenPort" in listed
    assert "compiled" in run(tmp_path / "venv/bin/aerobee", "--version", cwd=tmp_path)


def test_the_sdk_alone_is_small_and_has_the_command(source: Path, tmp_path: Path) -> None:
    """As docs/sdk.md says it; a broker of the whole installation is the other side."""
    assert "`pip install ./sdk` in a clone" in SDK_PAGE
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    pip = (sys.executable, "-m", "pip", "--python", tmp_path / "venv/bin/python", "install", "-q")
    run(*pip, "-c", ROOT / "constraints.txt", source / "sdk")
    (packages,) = (tmp_path / "venv/lib").glob("python3*/site-packages")
    size = sum(file.stat().st_size for file in packages.rglob("*") if file.is_file())
    assert size < 30 << 20
    command = tmp_path / "venv/bin/aerobee"
    assert "(no broker)" in run(command, "--version", cwd=tmp_path)
    absent = ("numpy", "uvloop", "aerobee/broker", "aerobee/pipeline")
    assert [name for name in absent if (packages / name).exists()] == []
    program = tmp_path / "program.py"
    program.write_text(SDK_PROGRAM)
    with AerobeeBroker(tmp_path / "broker") as broker:
        url = f"mq://{broker.namesrv}"
        assert "got one" in run(tmp_path / "venv/bin/python", program, url, cwd=tmp_path)
        assert "orders" in run(command, "topic", "list", "--url", url, cwd=tmp_path)
    for line in (["broker"], ["store", "stat", "."], ["user", "list"], ["pipeline", "audit"]):
        refused = subprocess.run([command, *line], capture_output=True, text=True, cwd=tmp_path)
        assert refused.returncode == 1 and "Traceback" not in refused.stderr
        assert "not in aerobee-sdk" in refused.stderr


def test_the_telemetry_page_installs_all_that_its_spans_need(source: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs/telemetry.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("pip install")]
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    words = shlex.split(line, comments=True)
    run(python, "-m", *words, "-q", cwd=source)
    run(
        python,
        "-c",
        "import opentelemetry.distro, opentelemetry.exporter.otlp, aerobee;"
        "aerobee.connect('mq://127.0.0.1:9', telemetry=True)",
        cwd=tmp_path,
    )


def test_the_sdk_has_the_version_of_the_whole(source: Path, wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, source / "sdk")
    (built,) = tmp_path.glob("*.whl")
    version = wheel.name.split("-")[1]
    assert built.name == f"aerobee_sdk-{version}-py3-none-any.whl"  # nothing of it is compiled
    names = [set(zipfile.ZipFile(each).namelist()) for each in (built, wheel)]
    only_here = {name for name in names[0] - names[1] if "dist-info" not in name}
    assert only_here == {"aerobee/LICENSE"}
