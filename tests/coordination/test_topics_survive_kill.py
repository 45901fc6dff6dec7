"""A topic that a send has made is on disk before the send is answered, also in a crowd."""

from pathlib import Path

from peers.aerobee_broker import AerobeeBroker
from peers.wire import Wire


def test_every_topic_made_by_an_answered_send_is_there_after_a_kill(tmp_path: Path) -> None:
    topics = [f"Crowd{number}" for number in range(40)]
    with AerobeeBroker(tmp_path) as broker:
        with Wire(broker.broker) as wire:
            for topic in topics:
                ext = {"a": "g", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0"}
                assert wire.request(310, {**ext, "h": "0"}, b"first").code == 0
        broker.kill()
    saved = (tmp_path / "store/config/topics.json").read_text()
    assert [topic for topic in topics if f'"{topic}"' not in saved] == []
