"""The inputs that `make fuzz-deep` has kept are read again; a planted difference is found."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import fuzz_deep
import pytest

from aerobee.broker.compiled import hot
from aerobee.protocol.wire.signing import Credentials

pytestmark = pytest.mark.skipif(hot is None, reason="this installation is pure Python")


@pytest.fixture
def checks() -> ModuleType:
    import deep_checks

    return deep_checks


def test_every_kept_input_is_read_as_in_python(checks: ModuleType) -> None:
    inputs, runs = fuzz_deep.load()
    assert len(inputs) > 100 and runs > 1_000_000
    assert fuzz_deep.KEPT.stat().st_size < 1.1 * fuzz_deep.SIZE_MAX
    for data in inputs:
        checks.check(data[0], data[1:])


def wrong_size(*given: Any) -> Any:
    assert hot is not None
    first, last, records, size, count = hot.take_records(*given)
    return first, last, records, size + 1, count


@pytest.mark.parametrize(
    ("kind", "name", "planted"),
    [
        (0, "FRAME_SIZE_MAX", 100),
        (0, "key_of", lambda _text: "another"),
        (0, "decode_records", lambda _data: []),
        (1, "ROOT", Credentials("another", "the-secret-of-root")),
        (2, "decode_batch", lambda _body: []),
        (3, "decode_batch", lambda _body: []),
        (3, "decode_send_v2", lambda _ext: SimpleNamespace(properties="another")),
        (4, "decode_ext", lambda *_: None),
        (5, "read_block", lambda *_, **__: SimpleNamespace(start=[])),
        (6, "hot", SimpleNamespace(take_records=wrong_size)),
    ],
)
def test_a_difference_between_both_is_found(
    kind: int, name: str, planted: object, checks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = [data[1:] for data in checks.seeds() if data[0] == kind]
    for data in sound:
        checks.check(kind, data)
    monkeypatch.setattr(checks, name, planted)
    with pytest.raises(AssertionError):
        for data in sound:
            checks.check(kind, data)
