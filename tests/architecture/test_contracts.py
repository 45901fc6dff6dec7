"""The walls between the layers hold: an import that they forbid fails `make check`."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIED = ("broker", "client", "conf", "make", "pipeline", "protocol", "src", "systemd")

# contract, where the import is planted, the import, how it is written
BREACHES = {
    "a package knows one above it": (
        "packages",
        *("protocol/wire/frame.py", "aerobee.broker.base.clock", "plain"),
    ),
    "the SDK knows the broker": (
        "the SDK does not know the broker",
        *("client/producing/sender.py", "aerobee.broker.base.clock", "plain"),
    ),
    "the pipeline knows the broker": (
        "the pipeline does not know the broker",
        *("pipeline/wire.py", "aerobee.broker.base.clock", "plain"),
    ),
    "the protocol waits": (
        "the protocol is bytes and values only",
        *("protocol/wire/frame.py", "asyncio", "plain"),
    ),
    "a layer of the broker knows one above it, inside a function": (
        "broker",
        *("broker/store/log/commitlog.py", "aerobee.broker.services.stats", "lazy"),
    ),
    "a service knows a socket, for its types only": (
        "services do not know a socket",
        *("broker/services/stats.py", "aerobee.broker.net.connection", "type checking"),
    ),
    "the log knows its index": (
        "store",
        *("broker/store/log/commitlog.py", "aerobee.broker.store.index.index_file", "plain"),
    ),
    "the wire knows the files": (
        "protocol",
        *("protocol/wire/frame.py", "aerobee.protocol.files.record", "plain"),
    ),
    "producing knows consuming": (
        "client",
        *("client/producing/sender.py", "aerobee.client.consuming.consumer", "type checking"),
    ),
    "the source knows the sink": (
        "pipeline",
        *("pipeline/source/queues.py", "aerobee.pipeline.sink.sender", "lazy"),
    ),
    "two neighbours know each other": (
        "no cycles at any depth",
        *("broker/net/connection.py", "aerobee.broker.net.server", "type checking"),
    ),
}
FORMS = {
    "plain": "\nimport {}  # noqa: E402, F401\n",
    "lazy": "\n\ndef planted() -> None:\n    import {}  # noqa: F401\n",
    "type checking": (
        "\nfrom typing import TYPE_CHECKING  # noqa: E402\n\n"
        "if TYPE_CHECKING:\n    import {}  # noqa: F401\n"
    ),
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the product, links and all."""
    copy = tmp_path_factory.mktemp("tree")
    for name in COPIED:
        shutil.copytree(
            *(ROOT / name, copy / name),
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy2(ROOT / name, copy / name)
    return copy


@contextmanager
def planted(tree: Path, path: str, imported: str, form: str) -> Iterator[None]:
    file = tree / path
    before = file.read_text()
    file.write_text(before + FORMS[form].format(imported))
    try:
        yield
    finally:
        file.write_text(before)


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    return run(tree, Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache")


def run(tree: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)


def test_every_contract_is_kept(tree: Path) -> None:
    result = lint(tree)
    assert result.returncode == 0, result.stdout
    assert " 0 broken" in result.stdout


@pytest.fixture(scope="module")
def broken(tree: Path) -> dict[str, str]:
    """The report on each contract that breaks when all of these imports are planted: one lint of
    the whole package takes seconds."""
    with ExitStack() as stack:
        for _, path, imported, form in BREACHES.values():
            stack.enter_context(planted(tree, path, imported, form))
        result = lint(tree)
    assert result.returncode == 1, result.stdout
    output = result.stdout.partition("Broken contracts")[2]
    parts = re.split(r"^(.+)\n-+\n", output, flags=re.MULTILINE)  # each under its name
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("breach", BREACHES.values(), ids=BREACHES)
def test_a_breach_fails_and_names_both_modules(
    broken: dict[str, str], breach: tuple[str, ...]
) -> None:
    contract, path, imported, _ = breach
    output = broken[contract]
    for name in ("aerobee." + path.removesuffix(".py").replace("/", "."), imported):
        # In a cycle siblings are named relative to their folder.
        assert name in output or f".{name.rpartition('.')[2]}" in output, output


def test_no_contract_is_broken_but_those_that_the_imports_break(broken: dict[str, str]) -> None:
    assert broken.keys() == {contract for contract, *_ in BREACHES.values()}


def test_a_folder_in_no_layer_fails(tree: Path) -> None:
    folders = ("broker", "broker/store", "client", "pipeline", "protocol")
    strays = [tree / folder / "stray.py" for folder in folders]
    for stray in strays:
        stray.write_text("")
    try:
        result = lint(tree)
    finally:
        for stray in strays:
            stray.unlink()
    assert result.returncode == 1
    for folder in folders:
        assert f"{folder.rpartition('/')[2]} BROKEN" in result.stdout
        assert f"aerobee.{folder.replace('/', '.')}.stray" in result.stdout, result.stdout


def test_make_check_fails_with_a_breach(tree: Path) -> None:
    contract, path, imported, form = BREACHES[
        "a layer of the broker knows one above it, inside a function"
    ]
    venv = sys.prefix
    installed = f"{venv}/.installed"  # use this environment as it is
    with planted(tree, path, imported, form):
        result = run(tree, "make", f"V={venv}", "-o", installed, "check")
    assert result.returncode != 0
    assert f"{contract} BROKEN" in result.stdout, result.stdout + result.stderr
