"""Tokens of the SQL92 filter language, and the error that points to the column.

Keywords are case-insensitive, names are `[A-Za-z_$][A-Za-z0-9_$]*`, `--` and `/* */` comment.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

KEYWORDS: Final = frozenset(
    {"NOT", "AND", "OR", "BETWEEN", "IN", "IS", "TRUE", "FALSE", "NULL"}
    | {"CONTAINS", "STARTSWITH", "ENDSWITH"}
)
NAME: Final = "name"
STRING: Final = "string"
INTEGER: Final = "integer"
FLOAT: Final = "float"
END: Final = "end"

_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\n\r\f]+|--[^\n\r]*|/\*.*?\*/)
      | (?P<float>\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
      | (?P<integer>0|[1-9]\d*[lL]?)
      | (?P<string>'(?:''|[^'])*')
      | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
      | (?P<sign><>|<=|>=|[=<>(),+-])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)


class FilterSyntaxError(ValueError):
    """An expression that cannot be used; the text shows where, under the line concerned."""

    def __init__(self, reason: str, text: str, at: int) -> None:
        line_start = max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1
        line = re.split(r"[\n\r]", text[line_start:], maxsplit=1)[0]
        self.reason = reason
        self.line = len(re.findall(r"\r\n|\n|\r", text[:line_start])) + 1
        self.column = at - line_start + 1
        where = f"column {self.column}" if self.line == 1 else f"line {self.line}, {self.column}"
        caret = "".join("\t" if mark == "\t" else " " for mark in line[: self.column - 1]) + "^"
        super().__init__(f"{reason} at {where}\n{line}\n{caret}")


class Token(NamedTuple):
    """`kind` is a keyword or a sign itself, or one of the kinds above."""

    kind: str
    text: str
    at: int

    def __str__(self) -> str:
        return "the end of the expression" if self.kind == END else repr(self.text)


def tokens(text: str) -> Iterator[Token]:
    """The tokens of an expression, the last of kind END."""
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise FilterSyntaxError(_reason(text, at), text, at)
        image, kind = match.group(), str(match.lastgroup)
        if kind in (INTEGER, FLOAT) and text[match.end() : match.end() + 1].isalnum():
            raise FilterSyntaxError(
                "a space or an operator must follow the number", text, match.end()
            )
        if kind != "space":
            yield Token(_kind(kind, image), image, at)
        at = match.end()
    yield Token(END, "", len(text))


def _kind(kind: str, image: str) -> str:
    if kind == "sign":
        return image
    return image.upper() if kind == NAME and image.upper() in KEYWORDS else kind


def _reason(text: str, at: int) -> str:
    if text[at] == "'":
        return "the quoted text is not closed"
    if text.startswith("/*", at):
        return "the comment is not closed"
    if text[at : at + 2] in ("!=", "=="):
        return f"{text[at : at + 2]!r} is not SQL92: write '<>' or '='"
    if text[at] == '"':
        return "write texts in single quotes, not in double ones,"
    return f"{text[at]!r} is not valid here"
