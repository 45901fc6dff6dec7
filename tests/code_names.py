"""What a module of ours defines, for documents that name its functions."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def names_in(path: str) -> set[str]:
    """Classes, functions and `Class.method`s of a module."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{each.name}"
                for each in node.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return found
