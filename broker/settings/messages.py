"""Settings of sending, pulling, topics, groups, delays, transactions and filters."""

import re
from dataclasses import dataclass

from aerobee.broker.settings.fields import setting
from aerobee.protocol.names import TRACE_TOPIC

_LEVEL = re.compile(r"[1-9]\d*[smhd]")


def _check_delay_levels(value: str) -> str | None:
    bad = [level for level in value.split() if not _LEVEL.fullmatch(level)]
    if value.split() and not bad:
        return None
    return f"write levels as 1s 5m 2h 1d, separated by blanks, not {bad[:1] or 'nothing'}"


@dataclass(init=False, repr=False, eq=False)  # a part of Settings
class MessageSettings:
    """Topics, groups, messages, timers and transactions."""

    # --- topics and groups
    auto_create_topic_enable: bool = setting(
        True, "A send to an unknown topic creates it, from the template TBW102.", runtime=True
    )
    max_topics: int = setting(
        10000, "Topics that sends may create at most.", low=0, ours=True, runtime=True
    )
    max_groups: int = setting(
        10000, "Groups that clients may create at most.", low=0, ours=True, runtime=True
    )
    auto_create_subscription_group: bool = setting(
        True, "An unknown consumer group is created on first use.", runtime=True
    )
    default_topic_queue_nums: int = setting(8, "Queues of the template TBW102.", low=1, high=1024)
    cluster_topic_enable: bool = setting(
        True, "The topic named as the cluster can be read and written."
    )
    broker_topic_enable: bool = setting(
        True, "The topic named as the broker can be read and written."
    )
    trace_topic_enable: bool = setting(False, "Create the topic for message traces.")
    msg_trace_topic_name: str = setting(TRACE_TOPIC, "Name of that topic.")
    trace_on: bool = setting(True, "Tell clients that traces are wanted.")
    validate_system_topic_when_update_topic: bool = setting(
        True, "Refuse to change the topics that the broker itself uses.", runtime=True
    )
    store_reply_message_enable: bool = setting(
        True, "Store the replies of request-reply in addition to pushing them.", runtime=True
    )

    # --- sending
    max_message_size: int = setting(
        4194304, "Largest message body.", unit="bytes", low=1, high=16777216 - 65536
    )
    max_queue_nums: int = setting(
        1024, "Most queues that one topic may have.", low=1, high=65536, ours=True, runtime=True
    )
    start_accept_send_request_time_stamp: int = setting(
        0, "Sends are refused before this moment.", unit="ms since 1970", low=0
    )

    # --- pulling
    long_polling_enable: bool = setting(
        True, "A pull that finds nothing may wait for a message.", runtime=True
    )
    short_polling_time_mills: int = setting(
        1000, "How long it waits when longPollingEnable is off.", unit="ms", low=0, runtime=True
    )
    max_transfer_bytes_on_message_in_memory: int = setting(
        8 << 20,
        "Most bytes of one pull, read from memory.",
        unit="bytes",
        low=1,
        runtime=True,
        high=16777216 - 65536,
        upstream="262144",
        why="a client gets what it asked for; pulls of many messages cost least for each",
    )
    max_transfer_count_on_message_in_memory: int = setting(
        4096,
        "Most messages of one pull, read from memory.",
        low=1,
        high=65536,
        runtime=True,
        upstream="32",
        why="a client gets what it asked for; pulls of many messages cost least for each",
    )
    max_transfer_bytes_on_message_in_disk: int = setting(
        65536,
        "Most bytes of one pull, read from disk.",
        unit="bytes",
        low=1,
        runtime=True,
        high=16777216 - 65536,
    )
    max_transfer_count_on_message_in_disk: int = setting(
        8, "Most messages of one pull, read from disk.", low=1, high=65536, runtime=True
    )
    max_filter_message_size: int = setting(
        16000,
        "Bytes of queue entries that one pull examines at most.",
        unit="bytes",
        low=20,
    )
    lite_pull_message_enable: bool = setting(True, "Answer LITE_PULL_MESSAGE.", runtime=True)
    reject_pull_consumer_enable: bool = setting(
        False, "Refuse consumers that pull without a push or lite-pull heartbeat.", runtime=True
    )
    default_query_max_num: int = setting(
        32, "Most messages that a query by unique key returns.", low=1, high=1024, runtime=True
    )
    max_msgs_num_batch: int = setting(
        64, "Most messages that a query by key returns.", low=1, high=1024
    )

    # --- clients
    max_producer_groups_per_connection: int = setting(
        10000,
        "Producer groups that one connection may register at most.",
        low=1,
        ours=True,
        runtime=True,
    )
    max_subscriptions_per_connection: int = setting(
        20000,
        "Subscriptions, of all its groups, that one connection may register at most.",
        low=1,
        high=200_000,
        ours=True,
        runtime=True,
    )
    max_held_pulls: int = setting(
        100_000,
        "Pulls that may wait for a message at a time; more are answered at once.",
        low=1,
        high=10_000_000,
        ours=True,
    )
    max_held_pulls_per_connection: int = setting(
        20_000,
        "The same of one connection, so that one client cannot take all.",
        low=1,
        high=10_000_000,
        ours=True,
    )
    max_filter_bytes: int = setting(
        64 << 20,
        "Text of the SQL92 filters that are kept for groups; each counts 1,000 bytes besides.",
        unit="bytes",
        low=0,
        ours=True,
        runtime=True,
    )
    notify_consumer_ids_changed_enable: bool = setting(
        True, "Notify the members of a group at once when one joins or leaves.", runtime=True
    )
    channel_expired_timeout: int = setting(
        120000, "A client is removed after this time without a heartbeat.", unit="ms", low=1000
    )
    flush_consumer_offset_interval: int = setting(
        5000, "How often consumer offsets are written to disk.", unit="ms", low=10
    )
    use_server_side_reset_offset: bool = setting(
        True,
        "The broker keeps a reset of offsets and applies it with the next pull.",
        runtime=True,
    )

    # --- filters
    enable_property_filter: bool = setting(
        True,
        "Consumers may filter by SQL92 expressions.",
        runtime=True,
        upstream="false",
        why="it costs nothing where it is not used",
    )
    filter_support_retry: bool = setting(
        False, "Apply SQL92 expressions to retried messages too.", runtime=True
    )

    # --- delays and timers
    message_delay_level: str = setting(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "The delay levels, from level 1.",
        check=_check_delay_levels,
    )
    flush_delay_offset_interval: int = setting(
        10000, "How often the progress of the delay levels is written to disk.", unit="ms", low=10
    )
    timer_wheel_enable: bool = setting(True, "Deliver messages at any given time.")
    timer_precision_ms: int = setting(
        100,
        "Timers fire at multiples of this.",
        unit="ms",
        low=10,
        high=60000,
        upstream="1000",
        why="finer timers cost little; a store goes to Apache and back with any value",
    )
    timer_max_delay_sec: int = setting(
        366 * 24 * 3600,
        "Longest delay of a timer.",
        unit="s",
        low=1,
        high=100 * 366 * 24 * 3600,
        upstream="259200",
        why="a year must be possible",
    )
    timer_roll_window_slot: int = setting(
        172800, "Slots that the wheel covers; later timers are rolled over.", low=2
    )
    timer_flush_interval_ms: int = setting(
        1000, "How often the wheel and its log are written to disk.", unit="ms", low=10
    )
    mapped_file_size_timer_log: int = setting(
        104857600, "Length of a file of the timer log.", unit="bytes", low=4096
    )
    recall_message_enable: bool = setting(
        True,
        "A timer message can be recalled before its time.",
        runtime=True,
        upstream="false",
        why="no cost unless it is used",
    )

    # --- transactions
    reject_transaction_message: bool = setting(
        False, "Refuse transactional messages.", runtime=True
    )
    transaction_time_out: int = setting(
        6000,
        "Age of a half message before its first check.",
        unit="ms",
        low=0,
        runtime=True,
    )
    transaction_check_max: int = setting(
        15, "Checks after which a half message is given up.", low=1, runtime=True
    )
    transaction_check_interval: int = setting(
        30000, "Interval of checks for open half messages.", unit="ms", low=10, runtime=True
    )
    spark_sink_keep_days: int = setting(
        90,
        "How long the exactly-once Spark sink remembers a query after its last commit; 0: always.",
        unit="d",
        low=0,
        high=36500,
        ours=True,
    )
