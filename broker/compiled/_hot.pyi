from collections.abc import Callable, Iterator
from typing import Any

def crc32(data: bytes, crc: int = 0, *, by_tables: bool = False) -> int: ...
def crc32_joined(first: int, second: int, second_size: int) -> int: ...

class Rules:
    added: bytes
    def __init__(
        self, unique: bytes, no_wait: bytes, names: tuple[bytes, ...], sys_flags: int, added: bytes
    ) -> None: ...

class Answers:
    def __init__(
        self,
        json: tuple[bytes, ...],
        form: Callable[[int, int, int, int, int], tuple[bytes, ...]],
    ) -> None: ...

class Frames:
    stop: int
    wanted: int
    bad: bool
    def __init__(self, data: bytes, length_max: int) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Cursor: ...

class Cursor(Iterator[tuple[int, bytes, bytes]]):
    def __length_hint__(self) -> int: ...
    def __next__(self) -> tuple[int, bytes, bytes]: ...
    def next_is_send(self) -> bool: ...
    def sends(
        self,
        plain: dict[str, dict[int, Any]],
        rules: Rules,
        born_host: bytes,
        store_host: bytes,
        waits: bool,
    ) -> Run | None: ...

class Run:
    codec: int
    code: int
    waits: bool
    encoded: int
    def __len__(self) -> int: ...
    def __getitem__(self, which: slice) -> list[Any]: ...
    def marks(self) -> list[tuple[int, int, int, bool, str]]: ...
    def stored(self) -> list[tuple[tuple[int, int, int, bool, str], int, int, int]]: ...
    def encode(
        self,
        base: int,
        position: int,
        limit: int,
        now_ms: int,
        append_crc: bool,
        body_size_max: int,
        properties_size_max: int,
    ) -> tuple[list[Any], bytes]: ...
    def size_bound(self, each: int) -> int: ...
    def message_ids(self, id_head: bytes) -> str: ...
    def answers(self, answers: Answers) -> bytes: ...

def batch(
    body: bytes,
    queue: Any,
    rules: Rules,
    sys_flag: int,
    born: int,
    times: int,
    born_host: bytes,
    store_host: bytes,
) -> Run | None: ...
def answers_of(codec: int, waiting: list[Any], answers: Answers) -> bytes | None: ...
def derived(
    facts: list[Any],
) -> tuple[list[tuple[Any, bytes]], tuple[bytes, bytes, bytes]] | None: ...
def sizes_of(facts: list[Any]) -> tuple[str | None, int, int, int]: ...
