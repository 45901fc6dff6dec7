"""Whether a batch is sound, by C and by Python: what C takes is sound, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.broker.compiled import hot
from aerobee.protocol.files.batch import check_batch, encode_batch
from aerobee.protocol.files.record_layout import CorruptRecord

pytestmark = pytest.mark.skipif(hot is None, reason="this installation is pure Python")

BEGIN = "ROW\x01"
TEXTS = st.one_of(
    st.text(alphabet="aé\x01\x02", max_size=9), st.text("aé\x02", max_size=9).map(BEGIN.__add__)
)


@given(st.data())
def test_c_takes_the_batches_that_python_takes(data: st.DataObject) -> None:
    assert hot is not None
    part = st.tuples(st.just(0), st.binary(max_size=9), TEXTS)
    body = bytearray(encode_batch(data.draw(st.lists(part, max_size=4))))
    for _ in range(data.draw(st.integers(0, 2)) if body else 0):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    begin, room = data.draw(st.sampled_from([b"", BEGIN.encode()])), data.draw(st.integers(4, 14))
    try:
        count = check_batch(bytes(body), begin, room)
    except CorruptRecord:
        count = 0
    assert hot.sound_batch(bytes(body), begin, room) == count
    assert hot.sound_batch(memoryview(body).toreadonly(), begin, room) == count


def test_a_batch_cut_anywhere_is_not_taken() -> None:
    assert hot is not None
    whole = encode_batch([(0, b"body", f"{BEGIN}{number}") for number in range(3)])
    (one, two) = (len(whole) // 3, len(whole) // 3 * 2)
    for end in range(len(whole) + 1):
        wanted = {one: 1, two: 2, len(whole): 3}.get(end, 0)
        assert hot.sound_batch(whole[:end], BEGIN.encode(), 9) == wanted
