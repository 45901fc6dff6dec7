"""Request-reply: the push of a reply to the producer that waits for it."""

from aerobee.protocol.files import properties as props
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.headers import SendRequest


def push_request(
    fields: SendRequest, body: bytes | memoryview, born_host: str, store_host: str, now_ms: int
) -> Command:
    """PUSH_REPLY_MESSAGE_TO_CLIENT; hosts are written `ip:port`, the body goes as it is."""
    ext = {
        "bornHost": born_host,
        "bornTimestamp": str(fields.born_timestamp),
        "defaultTopic": fields.default_topic,
        "defaultTopicQueueNums": str(fields.default_topic_queue_nums),
        "flag": str(fields.flag),
        "producerGroup": fields.producer_group,
        "properties": props.put(fields.properties, props.PUSH_REPLY_TIME, str(now_ms)),
        "queueId": str(fields.queue_id),
        "reconsumeTimes": str(fields.reconsume_times),
        "storeHost": store_host,
        "storeTimestamp": str(now_ms),
        "sysFlag": str(fields.sys_flag),
        "topic": fields.topic,
        "unitMode": "true" if fields.unit_mode else "false",
    }
    return Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext, body)


def waiting_client(fields: SendRequest) -> str | None:
    """The client id of the producer that waits for this reply."""
    return props.get(fields.properties, props.REPLY_TO_CLIENT)
