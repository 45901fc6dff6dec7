"""The inputs that were once found to matter are decoded again, and the corpus stays one."""

from __future__ import annotations

import corpus
import pytest
from fuzz_decoder import check

from aerobee.protocol.wire.frame import FrameDecoder


def test_every_kept_input_is_decoded_as_it_must_be() -> None:
    inputs = corpus.load()
    assert len(inputs) > 30
    assert corpus.CORPUS.stat().st_size < 200_000
    for data in inputs:
        check(data)


def test_a_decoder_that_minds_slices_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = FrameDecoder.feed

    def feed(self: FrameDecoder, data: bytes) -> object:
        return real(self, data[:-1] if len(data) % 7 == 3 else data)

    monkeypatch.setattr(FrameDecoder, "feed", feed)
    with pytest.raises(AssertionError):
        for data in corpus.load():
            check(data)
