"""Changelog entries as files of their own, so that no two branches write the same lines.

``changes/NAME.KIND.md`` holds one or more entries, each ``- `` and its text. `make changelog` moves
them under their heading in CHANGELOG.md; with ``--check`` this only says what is wrong.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KINDS = {"fixed": "Fixed", "changed": "Changed", "added": "Added"}
HEADINGS = [f"### {title}" for title in KINDS.values()]


def problems(changelog: str, fragments: dict[str, str]) -> list[str]:
    """What is wrong with the section that is not released yet, or with a fragment."""
    found = []
    heading = ""
    for line in _parts(changelog)[1].splitlines():
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
    before, section, released = _parts(changelog)
    for name, text in sorted(fragments.items(), reverse=True):
        heading = f"### {KINDS[name.split('.')[1]]}\n\n"
        if heading not in section:
            section = f"{section.rstrip()}\n\n{heading}"
        above, _, below = section.partition(heading)
        section = f"{above}{heading}{text.rstrip()}\n{below}"
    return "\n\n".join(part.strip() for part in (before, section, released) if part.strip()) + "\n"


def _parts(changelog: str) -> tuple[str, str, str]:
    """What is before the section that is not released yet, that section, and the released ones."""
    before, *sections = re.split(r"^(?=## )", changelog, flags=re.MULTILINE)
    is_open = bool(sections) and "unreleased" in sections[0].partition("\n")[0].lower()
    section = sections.pop(0) if is_open else "## Unreleased\n"
    return before, section, "".join(sections)


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
