"""Thousands of random SQL92 expressions: our filter and Apache's own must say the same."""

import random
import re
import subprocess
from pathlib import Path

import pytest
from peers.apache import build

from aerobee.broker.sql92 import FilterSyntaxError, compile_filter
from aerobee.protocol.files import properties as props

pytestmark = pytest.mark.apache

CASES = 10_000
NAMES = "abcd"
VALUES = ["5", "7.5", "abc", "true", "-3", "100", "0", "TRUE", "1e2", "5L", "3.0", "+5", " 5"]
OPERANDS = [*NAMES, "5", "7.5", "0", "-3", "100", "'abc'", "'5'", "TRUE", "FALSE", "NULL"]
OPERANDS += ["99999999999", "-a", "(a)", "+5", "- -5", "'it''s'", "1E2", ".5", "5."]


def condition(chance: random.Random) -> str:
    name, negated = chance.choice(NAMES), chance.choice(("", "NOT "))
    left, right = chance.choice(OPERANDS), chance.choice(OPERANDS)
    word = chance.choice(("CONTAINS", "STARTSWITH", "ENDSWITH"))
    sign = chance.choice(("=", "<>", ">", ">=", "<", "<="))
    shapes = [f"{left} {sign} {right}"] * 4
    shapes += [f"{name} {negated}BETWEEN {left} AND {right}", f"{name} {negated}IN ('5','abc')"]
    shapes += [f"{left} IS {negated}NULL", f"{left} {negated}{word} '{chance.choice('5a')}'"]
    shapes += [f"NOT {name}", name, "TRUE", "FALSE"]
    return chance.choice(shapes)


def expression(chance: random.Random, depth: int = 0) -> str:
    if depth > 2 or chance.random() < 0.4:
        return condition(chance)
    inner = expression(chance, depth + 1)
    if chance.random() < 0.3:
        return chance.choice((f"({inner})", f"NOT ({inner})"))
    return f"{inner} {chance.choice(('AND', 'OR'))} {expression(chance, depth + 1)}"


def verdict(text: str, properties: dict[str, str]) -> str:
    try:
        return "matched" if compile_filter(text)(properties) else "not"
    except FilterSyntaxError:
        return "refused"


def test_our_filter_and_apaches_agree(tmp_path: Path) -> None:
    chance = random.Random(42)
    cases: list[tuple[str, dict[str, str]]] = []
    while len(cases) < CASES:
        text = expression(chance)
        # TRUE or FALSE before a property fails in Apache by a wrong cast; here it is compared.
        if not re.search(r"(TRUE|FALSE) (=|<>) [(]*[a-d]", text):
            cases.append(
                (text, {n: chance.choice(VALUES) for n in NAMES if chance.random() < 0.75})
            )
    lines = [f"{text}\t{props.encode(properties)}" for text, properties in cases]
    (tmp_path / "cases").write_text("\n".join(lines) + "\n")
    java = ["java", "-Xmx256m", "-cp", build("5.5.0"), str(Path(__file__).parent / "Sql92.java")]
    subprocess.run([*java, tmp_path / "cases", tmp_path / "verdicts"], check=True, timeout=100)
    theirs = (tmp_path / "verdicts").read_text().splitlines()
    ours = [verdict(*case) for case in cases]
    different = [row for row in zip(cases, ours, theirs, strict=True) if row[1] != row[2]]
    assert different == []
    assert {"matched", "not", "refused"} == set(ours)
