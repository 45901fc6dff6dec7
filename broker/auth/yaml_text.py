"""YAML whose scalars are texts that know their lines. Imported when a file is read: most brokers
have none, and the library is a thirtieth of a start."""

from typing import Any

import yaml


class Text(str):
    """A scalar that knows its line."""

    __slots__ = ("line",)
    line: int


class _Loader(yaml.BaseLoader):  # type: ignore[misc]  # it has no types
    """Refuses aliases: with them a small file can expand to a huge one."""

    def construct_scalar(self, node: yaml.ScalarNode) -> Text:
        text = Text(super().construct_scalar(node))
        text.line = node.start_mark.line + 1
        return text

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(None, None, "aliases are not allowed", mark)
        return super().compose_node(parent, index)


def parse(data: bytes) -> Any:
    """Texts, lists and maps. ValueError with the problem, and the line behind a colon if it is
    known; the library's own text would quote the file, and with it a secret."""
    try:
        return yaml.load(data, _Loader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it is not YAML"
        raise ValueError(problem, where) from None
