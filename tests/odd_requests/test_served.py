"""What RocketMQ serves is served here, however odd: the quick part of the table, without a JVM."""

from collections.abc import Iterator

import pytest
from peers.aerobee_broker import AerobeeBroker

from odd_requests.asked import Asked
from odd_requests.rows import ROWS, SETTINGS
from odd_requests.stricter import STRICTER

BY_NAME = {row.name: row for row in ROWS}
NOT_FOUND, PARSE_FAILED, NO_GROUP = 22, 23, 26
ANSWERS = {
    **dict.fromkeys(
        [
            *("pull maxMsgNums 0", "pull maxMsgNums least", "lite pull maxMsgNums 0"),
            *("pull number with plus", "send missing producer group", "send empty body"),
            *("commit queue -1", "commit queue past end", "clone missing source"),
            *("reset queue past end", "max offset unknown topic", "min offset queue -1"),
            *("search unknown topic", "earliest unknown topic", "queue entries count -1"),
            *("queue entries many", "queue entries index -1", "heartbeat empty client"),
            *("lock no client", "unlock no client", "check config empty body"),
            *("topic 0 queues", "topic perm 99", "topic perm -1", "delete odd topic"),
            *("group retry queues many", "group retry times -5", "group config unknown"),
            *("forbid unknown", "mode of absent group", "mode none", "assignment unknown topic"),
            *("assignment odd strategy", "change config nothing", "kv put missing value"),
            *("wipe missing", "topics of cluster missing"),
        ],
        0,
    ),
    "pull odd subscription": PARSE_FAILED,
    "progress queue -1": NOT_FOUND,
    "by key maxNum 0": NOT_FOUND,
    "by key unknown topic": NOT_FOUND,
    "send retry topic of nobody": NO_GROUP,
    "route missing": 17,
}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    with AerobeeBroker(tmp_path_factory.mktemp("asked"), **SETTINGS) as broker:
        yield Asked(broker.broker, broker.namesrv)


@pytest.mark.parametrize("name", ANSWERS)
def test_odd_requests_that_rocketmq_serves_are_served(asked: Asked, name: str) -> None:
    *before, last = asked.answers(BY_NAME[name])
    assert [seen.code for seen in before] == [0] * len(before)
    assert last.code == ANSWERS[name], last.remark


@pytest.mark.parametrize("name", STRICTER)
def test_what_is_refused_for_safety_says_why(asked: Asked, name: str) -> None:
    refused = [seen for seen in asked.answers(BY_NAME[name]) if seen.code]
    assert refused and all(len(seen.remark) > 20 for seen in refused)


def test_no_message_goes_to_a_topic_without_queues(asked: Asked) -> None:
    made, *sends = asked.answers(BY_NAME["send to no queues at all"])
    assert made.code == 0 and {seen.code for seen in sends} == {29}
