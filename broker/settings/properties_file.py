"""Reading Java's .properties format, in which broker.conf is written."""

import re

_SEPARATOR = re.compile(r"(?:[^\\=:\s]|\\.)*")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)


def parse_properties(text: str) -> list[tuple[int, str, str]]:
    """(line number, key, value) of each entry, in order; a key may come twice."""
    return [(number, *_split(line)) for number, line in _logical_lines(text)]


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines without comments and blanks; an odd number of \\ at the end continues it."""
    lines: list[tuple[int, str]] = []
    begun: tuple[int, str] | None = None
    for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        line = raw.lstrip(" \t\f")
        if begun is None and (not line or line[0] in "#!"):
            continue
        start, head = begun or (number, "")
        if (len(line) - len(line.rstrip("\\"))) % 2:
            begun = (start, head + line[:-1])
        else:
            begun = None
            lines.append((start, head + line))
    if begun is not None:
        lines.append(begun)
    return lines


def _split(line: str) -> tuple[str, str]:
    match = _SEPARATOR.match(line)
    assert match is not None  # the pattern matches the empty string too
    rest = line[match.end() :].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return _unescape(match.group()), _unescape(rest).rstrip()


def _unescape(text: str) -> str:
    def replace(match: "re.Match[str]") -> str:
        escape = match.group(1)
        if len(escape) == 5:
            return chr(int(escape[1:], 16))
        return _ESCAPES.get(escape, escape)

    return _ESCAPED.sub(replace, text)
