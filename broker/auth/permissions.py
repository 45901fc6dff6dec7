"""What each request needs: one table, and a handler without a row in it stops the start.

A row is OPEN (everyone), SIGNED (any user), SUPER, or needs (see `needs`), all of which must be
met. docs/security.md shows the table.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from aerobee.broker.auth.model import CREATE, DELETE, GET, PUB, SUB, UPDATE
from aerobee.broker.auth.needs import (
    Need,
    body_names,
    chunks_of_commit,
    cluster,
    group,
    group_if_named,
    heartbeat,
    record_at_offset,
    record_by_id,
    record_of_transaction,
    topic,
    topic_if_named,
    topic_or_cluster,
    topics_if_named,
)
from aerobee.protocol.wire.codes import RequestCode


class Level(Enum):
    """Rows without a resource."""

    OPEN = "open"
    SIGNED = "signed"
    SUPER = "super"


Row = Level | tuple[Need, ...]

_OPEN, _SIGNED, _SUPER = Level.OPEN, Level.SIGNED, Level.SUPER
_PULL: Final = (topic("topic", SUB), group("consumerGroup", SUB))
_READ_TOPIC: Final = (topic("topic", GET),)
# A consumer has to ask for the ends of a queue before its first pull, so SUB is enough for that.
_RANGE: Final = (topic("topic", GET, SUB),)
_LOCK: Final = (
    body_names(group_key="consumerGroup", actions=(SUB,)),
    body_names("topic", list_key="mqSet", actions=(SUB,)),
)
_CLUSTER_GET: Final = (cluster(GET),)
_CLUSTER_UPDATE: Final = (cluster(UPDATE),)

ROWS: Final[Mapping[int, Row]] = {
    # messages
    RequestCode.SEND_MESSAGE: (topic("topic", PUB),),
    RequestCode.SEND_MESSAGE_V2: (topic("b", PUB),),
    RequestCode.SEND_BATCH_MESSAGE: (topic("b", PUB),),
    RequestCode.SEND_REPLY_MESSAGE: (topic("topic", PUB),),
    RequestCode.SEND_REPLY_MESSAGE_V2: (topic("b", PUB),),
    RequestCode.RECALL_MESSAGE: (topic("topic", PUB),),
    RequestCode.END_TRANSACTION: (record_of_transaction,),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: (record_by_id(UPDATE),),
    RequestCode.PULL_MESSAGE: _PULL,
    RequestCode.LITE_PULL_MESSAGE: _PULL,
    RequestCode.CONSUMER_SEND_MSG_BACK: (group("group", SUB), record_at_offset(SUB)),
    RequestCode.QUERY_MESSAGE: (topic("topic", SUB, GET),),
    RequestCode.VIEW_MESSAGE_BY_ID: (record_at_offset(GET, SUB),),
    # clients
    RequestCode.HEART_BEAT: (heartbeat,),
    RequestCode.UNREGISTER_CLIENT: (group_if_named("consumerGroup", SUB),),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: (group("consumerGroup", SUB, GET),),
    RequestCode.LOCK_BATCH_MQ: _LOCK,
    RequestCode.UNLOCK_BATCH_MQ: _LOCK,
    RequestCode.CHECK_CLIENT_CONFIG: _SIGNED,
    RequestCode.QUERY_ASSIGNMENT: (body_names("topic", "consumerGroup", actions=(SUB,)),),
    # offsets
    RequestCode.QUERY_CONSUMER_OFFSET: (
        topic("topic", SUB, GET),
        group("consumerGroup", SUB, GET),
    ),
    RequestCode.UPDATE_CONSUMER_OFFSET: (
        topic("topic", SUB, UPDATE),
        group("consumerGroup", SUB, UPDATE),
    ),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _RANGE,
    RequestCode.GET_MAX_OFFSET: _RANGE,
    RequestCode.GET_MIN_OFFSET: _RANGE,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _RANGE,
    # topics
    RequestCode.UPDATE_AND_CREATE_TOPIC: (topic("topic", CREATE),),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: (
        body_names("topicName", list_key="topicConfigList", actions=(CREATE,)),
    ),
    RequestCode.DELETE_TOPIC_IN_BROKER: (topic("topic", DELETE),),
    RequestCode.GET_TOPIC_CONFIG: _READ_TOPIC,
    RequestCode.GET_TOPIC_STATS_INFO: _READ_TOPIC,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _READ_TOPIC,
    RequestCode.QUERY_CONSUME_QUEUE: _READ_TOPIC,
    RequestCode.GET_ALL_TOPIC_CONFIG: _CLUSTER_GET,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _CLUSTER_GET,
    # groups
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (
        body_names(group_key="groupName", actions=(CREATE,)),
    ),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: (
        body_names(group_key="groupName", list_key="groupConfigList", actions=(CREATE,)),
    ),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: (group("groupName", DELETE),),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: (group("group", GET),),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: (group("consumerGroup", GET),),
    RequestCode.GET_CONSUME_STATS: (
        group("consumerGroup", GET),
        topic_if_named("topic", GET),
        topics_if_named("topicList", GET),
    ),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: (group("group", GET),),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: (
        group("group", GET),
        topic_if_named("topic", GET),
    ),
    RequestCode.QUERY_CONSUME_TIME_SPAN: (topic("topic", GET), group("group", GET)),
    RequestCode.GET_CONSUMER_RUNNING_INFO: (group("consumerGroup", GET),),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: (group("consumerGroup", SUB), record_by_id(SUB)),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (topic("topic", GET), group("group", GET)),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: (topic("topic", UPDATE), group("group", UPDATE)),
    RequestCode.CLONE_GROUP_OFFSET: (
        group("srcGroup", UPDATE),
        group("destGroup", UPDATE),
        topic_if_named("topic", UPDATE),
    ),
    RequestCode.QUERY_CORRECTION_OFFSET: (topic("topic", GET), group("compareGroup", GET)),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: (topic("topic", UPDATE), group("group", UPDATE)),
    RequestCode.SET_MESSAGE_REQUEST_MODE: (
        body_names("topic", "consumerGroup", actions=(UPDATE,)),
    ),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _CLUSTER_GET,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: _CLUSTER_GET,
    # the broker
    RequestCode.UPDATE_BROKER_CONFIG: _CLUSTER_UPDATE,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _CLUSTER_UPDATE,
    RequestCode.DELETE_EXPIRED_COMMITLOG: _CLUSTER_UPDATE,
    RequestCode.CLEAN_UNUSED_TOPIC: _CLUSTER_UPDATE,
    RequestCode.GET_BROKER_CONFIG: _CLUSTER_GET,
    RequestCode.GET_BROKER_RUNTIME_INFO: _CLUSTER_GET,
    RequestCode.GET_ALL_CONSUMER_OFFSET: _CLUSTER_GET,
    RequestCode.GET_ALL_DELAY_OFFSET: _CLUSTER_GET,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _CLUSTER_GET,
    RequestCode.GET_ALL_PRODUCER_INFO: _CLUSTER_GET,
    RequestCode.GET_BROKER_CONSUME_STATS: _CLUSTER_GET,
    RequestCode.VIEW_BROKER_STATS_DATA: _CLUSTER_GET,
    RequestCode.GET_BROKER_HA_STATUS: _CLUSTER_GET,
    RequestCode.GET_BROKER_EPOCH_CACHE: _CLUSTER_GET,
    RequestCode.EXCHANGE_BROKER_HA_INFO: _CLUSTER_UPDATE,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: _CLUSTER_UPDATE,
    RequestCode.GET_TIMER_CHECK_POINT: _CLUSTER_GET,
    RequestCode.GET_TIMER_METRICS: _CLUSTER_GET,
    # users and their rights
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: _SUPER,
    RequestCode.DELETE_ACL_CONFIG: _SUPER,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _SUPER,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: _CLUSTER_GET,
    RequestCode.AUTH_CREATE_USER: _SUPER,
    RequestCode.AUTH_UPDATE_USER: _SUPER,
    RequestCode.AUTH_DELETE_USER: _SUPER,
    RequestCode.AUTH_GET_USER: _CLUSTER_GET,
    RequestCode.AUTH_LIST_USER: _CLUSTER_GET,
    RequestCode.AUTH_CREATE_ACL: _SUPER,
    RequestCode.AUTH_UPDATE_ACL: _SUPER,
    RequestCode.AUTH_DELETE_ACL: _SUPER,
    RequestCode.AUTH_GET_ACL: _CLUSTER_GET,
    RequestCode.AUTH_LIST_ACL: _CLUSTER_GET,
    # name service; Go's pull consumer does not sign its questions for routes
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _OPEN,
    RequestCode.REGISTER_BROKER: _CLUSTER_UPDATE,
    RequestCode.UNREGISTER_BROKER: _CLUSTER_UPDATE,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: _CLUSTER_UPDATE,
    RequestCode.QUERY_DATA_VERSION: _CLUSTER_UPDATE,
    RequestCode.BROKER_HEARTBEAT: _CLUSTER_UPDATE,
    RequestCode.PUT_KV_CONFIG: _SUPER,
    RequestCode.DELETE_KV_CONFIG: _SUPER,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: _SUPER,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: _SUPER,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _SUPER,
    RequestCode.UPDATE_NAMESRV_CONFIG: _SUPER,
    RequestCode.GET_KV_CONFIG: _CLUSTER_GET,
    RequestCode.GET_KVLIST_BY_NAMESPACE: _CLUSTER_GET,
    RequestCode.GET_BROKER_CLUSTER_INFO: _CLUSTER_GET,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _CLUSTER_GET,
    RequestCode.GET_TOPICS_BY_CLUSTER: _CLUSTER_GET,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: _CLUSTER_GET,
    RequestCode.GET_UNIT_TOPIC_LIST: _CLUSTER_GET,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: _CLUSTER_GET,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _CLUSTER_GET,
    RequestCode.GET_NAMESRV_CONFIG: _CLUSTER_GET,
    RequestCode.GET_BROKER_MEMBER_GROUP: _CLUSTER_GET,
    # POP, which is refused with a reason
    **dict.fromkeys((200050, 200051, 200052, 200053, 200054, 200055, 200151), _PULL),
    # ours: the Spark sink's SINK_STATE, _PREPARE, _COMMIT, its list of queries and their removal,
    # SINK_HOME; LIST_TIMERS; PROMOTE, GET_ACCESS; EXPLAIN_MESSAGE
    20100: _SIGNED,
    20101: (topic("topic", PUB),),
    20102: (chunks_of_commit,),
    20103: _CLUSTER_GET,
    20104: _CLUSTER_UPDATE,
    20105: (topic("topic", PUB),),
    20110: (topic_or_cluster("topic", GET),),
    20120: _CLUSTER_UPDATE,
    20121: _SUPER,
    20130: (topic_or_cluster("topic", GET),),
}

# Calls that change more than messages and offsets, or show secrets: each leaves a line in the log.
ADMINISTRATIVE: Final = frozenset(
    {
        *(17, 18, 25, 50, 51, 53, 100, 102, 200, 205, 207, 215, 216, 217, 222, 225),
        *(306, 309, 314, 316, 318, 323, 327, 329, 353, 401),
        *(3001, 3002, 3003, 3006, 3007, 3008, 20104, 20120),
    }
)


def missing_rows(codes: Iterable[int]) -> list[int]:
    """Request codes without a row."""
    return sorted(int(code) for code in codes if code not in ROWS)
