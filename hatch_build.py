"""Builds the compiled part of the broker: into a wheel, or beside its sources if editable.

It needs a C compiler and Python's headers. If something is missing, or with AEROBEE_PURE=1, the
package is installed without it: the broker then takes the same path in Python.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULE = "aerobee.broker.compiled._hot"
FOLDER = Path("broker/compiled")


def build(root: Path, made: Path) -> Path:
    """Translate and compile; returns the module. All intermediate files are under `made`."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    # By a relative path the translated file stays inside `build_dir`.
    here = os.getcwd()
    os.chdir(root)
    try:
        flags = os.environ.get("AEROBEE_CFLAGS", "-O3 -g0").split()
        extension = Extension(
            MODULE,
            [str(FOLDER / "_hot.pyx")],
            include_dirs=[str(root / FOLDER)],
            depends=[
                str(path) for path in sorted(FOLDER.iterdir()) if path.suffix in (".pxi", ".h")
            ],
            extra_compile_args=flags,
            extra_link_args=[flag for flag in flags if flag.startswith("-fsanitize")],
        )
        modules = cythonize([extension], build_dir=str(made / "c"), force=True, quiet=True)
        command = Distribution({"name": "aerobee", "ext_modules": modules}).get_command_obj(
            "build_ext"
        )
        command.build_lib, command.build_temp = str(made / "lib"), str(made / "temp")
        command.ensure_finalized()
        command.run()
        return Path(command.get_ext_fullpath(MODULE))
    finally:
        os.chdir(here)


def put_in_place(module: Path, folder: Path) -> None:
    """Replace the module in one step: a running broker keeps the one it has loaded. The digest of
    its sources is put beside it: one from older sources is not used (`aerobee.broker.compiled`)."""
    fresh = folder / f"{module.name}.new"
    shutil.copy2(module, fresh)
    fresh.replace(folder / module.name)
    (folder / f"{module.name}.sources").write_text(digest_of_sources(folder))


def digest_of_sources(folder: Path) -> str:
    """As in `aerobee.broker.compiled`, which cannot be imported before it is installed."""
    sources = sorted(path for path in folder.iterdir() if path.suffix in (".pyx", ".pxi", ".h"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._made = Path(tempfile.mkdtemp(prefix="aerobee-build-"))
        root = Path(self.root)
        try:
            if os.environ.get("AEROBEE_PURE", "") not in ("", "0"):
                raise RuntimeError("AEROBEE_PURE")
            module = build(root, self._made)
        except (Exception, SystemExit) as error:  # a compiler may fail in any way
            if version == "editable":
                for old in (root / FOLDER).glob(f"_hot.{sys.implementation.cache_tag}*.so"):
                    old.unlink()  # of other sources
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self._say(f"could not be built ({lines[-1][:120]}); the broker runs in pure Python")
            return
        if version == "editable":
            put_in_place(module, root / FOLDER)
        else:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["force_include"][str(module)] = f"aerobee/{FOLDER}/{module.name}"
        self._say("is built")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self._made, ignore_errors=True)

    def _say(self, what: str) -> None:
        self.app.display_info(f"aerobee: the compiled part {what}")


if __name__ == "__main__":  # beside its sources, as an editable install does
    with tempfile.TemporaryDirectory() as made:
        put_in_place(build(Path.cwd(), Path(made)), FOLDER)
