"""Changelog entries as files of their own, so that no two branches write the same lines.

``changes/NAME.KIND.md`` holds one or more entries, each ``- `` and its text. `make changelog` moves
them under their heading in CHANGELOG.md; with ``--check`` this only says what is wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KINDS = {"fixed": "Fixed", "changed": "Changed", "added": "Added"}
HEADINGS = [f"### {title}" for title in KINDS.values()]


def problems(changelog: str, fragments: dict[str, str]) -> list[str]:
    """What is wrong with the section that is not released yet, or with a fragment."""
    found = []
    heading = ""
    for line in _unreleased(changelog).splitlines():
        if line.startswith("### "):
            heading = line
            if heading not in HEADINGS:
                found.append(f"CHANGELOG.md: {heading!r}; use one of {', '.join(HEADINGS)}")
        elif line.startswith("- ") and not heading:
            found.append(f"CHANGELOG.md: {line[:60]!r} is under no heading: write it to changes/")
    for name, text in fragments.items():
        if name.split(".")[1:] not in [[kind, "md"] for kind in KINDS]:
            found.append(
                f"changes/{name}: the name is NAME.KIND.md, KIND one of {', '.join(KINDS)}"
            )
        if not text.startswith("- "):
            found.append(f"changes/{name}: an entry begins with '- '")
    return found


def folded(changelog: str, fragments: dict[str, str]) -> str:
    """The changelog with the fragments as the first entries under their headings."""
    for name, text in sorted(fragments.items(), reverse=True):
        heading = f"### {KINDS[name.split('.')[1]]}\n\n"
        before, found, after = changelog.partition(heading)
        assert found, f"CHANGELOG.md has no {heading.strip()!r}"
        changelog = f"{before}{heading}{text.rstrip()}\n{after}"
    return changelog


def _unreleased(changelog: str) -> str:
    return changelog.partition("\n## ")[2].partition("\n## ")[0]


def main() -> int:
    file = ROOT / "CHANGELOG.md"
    paths = [path for path in (ROOT / "changes").glob("*") if path.name != "README.md"]
    fragments = {path.name: path.read_text() for path in paths}
    changelog = file.read_text()
    wrong = problems(changelog, fragments)
    print("\n".join(wrong) or f"{len(fragments)} changes wait for the changelog")
    if not wrong and "--check" not in sys.argv:
        file.write_text(folded(changelog, fragments))
        for path in paths:
            path.unlink()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
