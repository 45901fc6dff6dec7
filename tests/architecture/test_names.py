"""A name is right when it is read alone, in a traceback or a search."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("broker", "client", "pipeline", "protocol")


@pytest.mark.parametrize("package", PACKAGES)
def test_no_class_name_is_used_twice_in_a_package(package: str) -> None:
    found = defaultdict(list)
    for file in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(file.relative_to(ROOT)))
    assert found
    assert not {name: files for name, files in found.items() if len(files) > 1}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_lies_beside_a_folder_of_its_name(package: str) -> None:
    files = [file for file in (ROOT / package).rglob("*.py") if file.name != "__init__.py"]
    assert files
    assert not [file for file in files if file.with_suffix("").is_dir()]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_opens_with_a_sentence(package: str) -> None:
    for file in (ROOT / package).rglob("*.py"):
        text = file.read_text()
        doc = ast.get_docstring(ast.parse(text)) if text else "."
        assert doc and doc.partition("\n\n")[0][-1] in ".:?", file
