"""The messages that the benchmarks of the store put."""

from aerobee.protocol.record import Message

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
LIST = 32  # messages in one put


def messages(size: int, count: int, start: int = 0) -> list[Message]:
    """As a client sends them: a unique key, a key, a tag."""
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    return [
        Message(
            "BenchTopic",
            n % 8,
            body,
            f"UNIQ_KEY\x017F0000010A5B18B4AAC2{n:012X}\x02KEYS\x01order-{n}\x02TAGS\x01TagA\x02",
            born_timestamp=1_700_000_000_000,
            born_host=HOST,
            store_host=HOST,
        )
        for n in range(start, start + count)
    ]
