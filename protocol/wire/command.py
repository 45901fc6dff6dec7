"""One remoting frame as a value."""

from dataclasses import dataclass, field
from typing import Final

JSON: Final = 0
ROCKETMQ: Final = 1
MSGPACK: Final = 2

VERSION: Final = 513  # the number of RocketMQ 5.5.0
RESPONSE_FLAG: Final = 1
ONEWAY_FLAG: Final = 2

LANGUAGES: Final = [
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
    "RUST",
    "NODE_JS",
]


@dataclass(slots=True)
class Command:
    """A request or an answer: `ext` holds the fields of its code, all as text."""

    code: int
    ext: dict[str, str] = field(default_factory=dict)
    body: bytes | memoryview = b""
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: str = "PYTHON"
    version: int = VERSION
    codec: int = JSON

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY_FLAG)

    def answer(
        self,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
        remark: str | None = None,
    ) -> "Command":
        """The response to this request, in its codec."""
        return Command(
            code,
            {} if ext is None else ext,
            body,
            self.opaque,
            RESPONSE_FLAG,
            remark,
            codec=self.codec,
        )
