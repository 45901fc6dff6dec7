"""The ext fields of coordination, query and administration requests, a struct for each."""

from msgspec import field

from aerobee.protocol.wire.headers import Header, Int32, Int64


class TopicHeader(Header):
    """Requests that name a topic and no more."""

    topic: str


class GroupHeader(Header):
    """Requests that name a group as `group`."""

    group: str


class ConsumerGroupHeader(Header):
    """Requests that name a group as `consumerGroup`."""

    consumer_group: str


# --- clients


class UnregisterClient(Header):
    """UNREGISTER_CLIENT."""

    client_id: str = field(name="clientID", default="")
    producer_group: str | None = None
    consumer_group: str | None = None


# --- offsets


class QueryConsumerOffset(Header):
    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffset(Header):
    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class QueueHeader(Header):
    """GET_MAX_OFFSET, GET_MIN_OFFSET, GET_EARLIEST_MSG_STORETIME."""

    topic: str
    queue_id: Int32


class SearchOffset(Header):
    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None


# --- queries


class QueryMessage(Header):
    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    index_type: str | None = None


class ViewMessage(Header):
    offset: Int64
    topic: str | None = None


class QueryConsumeQueue(Header):
    topic: str
    queue_id: Int32
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None


# --- topics


class CreateTopic(Header):
    topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    default_topic: str | None = None
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None


class TopicPage(Header):
    """GET_ALL_TOPIC_CONFIG, whole or, since 5.3, in pages."""

    topic_seq: Int32 | None = None
    max_topic_num: Int32 | None = None
    data_version: str | None = None


# --- groups


class GroupPage(Header):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG, whole or, since 5.3, in pages."""

    group_seq: Int32 | None = None
    max_group_num: Int32 | None = None
    data_version: str | None = None


class DeleteGroup(Header):
    """5.x says cleanOffset, 4.9 removeOffset."""

    group_name: str
    clean_offset: bool = False
    remove_offset: bool = False


class GroupForbidden(Header):
    group: str
    topic: str
    readable: bool | None = None


# --- consumers


class ConsumeStats(Header):
    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class ConsumeStatsInBroker(Header):
    is_order: bool = False


class ResetOffset(Header):
    topic: str
    group: str
    timestamp: Int64
    is_force: bool = False
    queue_id: Int32 = -1
    offset: Int64 | None = None


class ConsumerStatus(Header):
    topic: str
    group: str
    client_addr: str | None = None


class TopicAndGroup(Header):
    topic: str
    group: str


class SubscriptionOfGroup(Header):
    group: str
    topic: str | None = None


class RunningInfo(Header):
    consumer_group: str
    client_id: str


class ConsumeDirectly(Header):
    consumer_group: str
    msg_id: str
    client_id: str | None = None
    topic: str | None = None


class CorrectionOffset(Header):
    compare_group: str
    topic: str
    filter_groups: str | None = None


class CloneOffset(Header):
    dest_group: str
    src_group: str = ""
    topic: str | None = None
    offline: bool = False


class ProducerConnections(Header):
    producer_group: str


class StatsData(Header):
    stats_name: str
    stats_key: str
