"""What was acknowledged survives an immediate kill, also under many clients."""

from pathlib import Path

from peers.aerobee_broker import AerobeeBroker
from peers.wire import Wire

_TOPIC = {"defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}


def test_every_topic_made_by_an_answered_send_is_there_after_a_kill(tmp_path: Path) -> None:
    topics = [f"Crowd{number}" for number in range(40)]
    with AerobeeBroker(tmp_path) as broker:
        with Wire(broker.broker) as wire:
            for topic in topics:
                ext = {"a": "g", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0"}
                assert wire.request(310, {**ext, "h": "0"}, b"first").code == 0
        broker.kill_and_start()
        with Wire(broker.broker) as wire:
            lost = [topic for topic in topics if wire.request(351, {"topic": topic}).code]
    assert lost == []


def test_what_an_operator_was_told_is_done_is_there_after_a_kill(tmp_path: Path) -> None:
    with AerobeeBroker(tmp_path) as broker:
        with Wire(broker.broker) as wire:
            filter_type = {"topicFilterType": "SINGLE_TAG", "order": "false"}
            for number in range(30):
                ext = {"topic": f"T{number}", **_TOPIC, **filter_type}
                assert wire.request(17, ext).code == 0
                body = b'{"groupName":"G%d","retryMaxTimes":7}' % number
                assert wire.request(200, {}, body).code == 0
                value = {"namespace": "n", "key": f"k{number}", "value": "v"}
                assert wire.request(100, value).code == 0
            assert wire.request(215, {"topic": "T3"}).code == 0
            reset = {"topic": "T4", "group": "G4", "timestamp": -1, "isForce": "true"}
            assert wire.request(222, {**reset, "queueId": 2}).code == 0
        broker.kill_and_start()
        with Wire(broker.broker) as wire:
            for number in range(30):
                known = wire.request(351, {"topic": f"T{number}"})
                assert (known.code == 0) is (number != 3)
                assert b'"retryMaxTimes":7' in wire.request(352, {"group": f"G{number}"}).body
                assert wire.request(101, {"namespace": "n", "key": f"k{number}"}).code == 0
            query = {"consumerGroup": "G4", "topic": "T4", "queueId": 2}
            assert wire.request(14, {**query, "setZeroIfNotFound": "false"}).ext["offset"] == "0"
        broker.restart()  # clean: then the JSON files hold everything, and there is no journal
        saved = (tmp_path / "store/config/topics.json").read_text()
        assert '"T29"' in saved and '"T3"' not in saved
        broker.stop()
        assert not list((tmp_path / "store/config").glob("*.journal"))
        broker.start()
