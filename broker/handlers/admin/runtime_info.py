"""The figures of GET_BROKER_RUNTIME_INFO, which brokerStatus, clusterList and the dashboard show.

All values are texts. mqadmin's clusterList reads many keys without checking whether they exist, so
every key of RocketMQ is present: those of its thread pools are 0, as there are none here.
"""

import os
from typing import Final

from aerobee.broker.base.histogram import quantile
from aerobee.broker.handlers.context import Broker
from aerobee.broker.settings.known import find_key, text_of
from aerobee.protocol.files.record import decode_record
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.names import TIMER_TOPIC
from aerobee.protocol.wire.codes import RequestCode

VERSION_TEXT: Final = "V5_5_0"
_SENDS: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
)
# Buckets are powers of two of a microsecond; these labels are the nearest of RocketMQ's.
_BOUNDS: Final = {10 + n: f"{1 << n}ms" for n in range(10)} | {20: "1s"}
_ENQUEUED: Final = "timers enqueued"
_DEQUEUED: Final = "timers dequeued"

# Prefix of the keys, name of the capacity's setting.
_POOLS: Final = {
    "sendThreadPoolQueue": "sendThreadPoolQueueCapacity",
    "pullThreadPoolQueue": "pullThreadPoolQueueCapacity",
    "litePullThreadPoolQueue": "litePullThreadPoolQueueCapacity",
    "queryThreadPoolQueue": "queryThreadPoolQueueCapacity",
    "ackThreadPoolQueue": "ackThreadPoolQueueCapacity",
}


def runtime_info(broker: Broker) -> dict[str, str]:
    """Every key with its value now."""
    return {
        **_traffic(broker),
        **_puts(broker),
        **_log(broker),
        **_disk(broker),
        **_delays(broker),
        **_pools(broker),
        **_ours(broker),
        "brokerActive": str(not broker.settings.is_slave).lower(),
        "brokerVersionDesc": VERSION_TEXT,
        "startAcceptSendRequestTimeStamp": str(
            broker.settings.start_accept_send_request_time_stamp
        ),
    }


def _traffic(broker: Broker) -> dict[str, str]:
    stats = broker.stats
    windows = [stats.rates(seconds) for seconds in (10, 60, 600)]

    def rates(*columns: int) -> str:
        return " ".join(f"{sum(window[column] for column in columns):.2f}" for window in windows)

    return {
        "bootTimestamp": str(stats.started_ms),
        "runtime": _duration(broker.clock.now_ms() - stats.started_ms),
        "msgPutTotalYesterdayMorning": str(stats.put_yesterday),
        "msgPutTotalTodayMorning": str(stats.put_today),
        "msgPutTotalTodayNow": str(stats.broker_put.nums),
        "msgGetTotalYesterdayMorning": str(stats.get_yesterday),
        "msgGetTotalTodayMorning": str(stats.get_today),
        "msgGetTotalTodayNow": str(stats.broker_get.nums),
        "putTps": rates(0),
        "getTransferredTps": rates(1),
        "getTransferedTps": rates(1),  # as 4.x spells it
        "getFoundTps": rates(2),
        "getMissTps": rates(3),
        "getTotalTps": rates(2, 3),
    }


def _puts(broker: Broker) -> dict[str, str]:
    stats = broker.store.stats
    times = stats.puts
    took = [sum(counts) for counts in zip(*_send_times(broker), strict=True)]
    return {
        "putLatency99": f"{quantile(took, 0.99) * 1000:.2f}",
        "putLatency999": f"{quantile(took, 0.999) * 1000:.2f}",
        "putMessageDistributeTime": _distribution(took),
        "putMessageTimesTotal": str(times),
        "putMessageFailedTimes": str(stats.put_failures),
        "putMessageSizeTotal": str(stats.put_bytes),
        "putMessageAverageSize": str(stats.put_bytes / times if times else 0.0),
        "putMessageEntireTimeMax": str(round(stats.put_lock_ms_max)),
        "getMessageEntireTimeMax": str(_longest_pull_ms(broker)),
        "pageCacheLockTimeMills": "0",  # an append never waits for a lock here
        "dispatchMaxBuffer": "0",
    }


def _send_times(broker: Broker) -> list[list[int]]:
    return [broker.latencies[code].counts for code in _SENDS if code in broker.latencies]


def _longest_pull_ms(broker: Broker) -> int:
    """The upper bound of the last bucket that is not empty."""
    histogram = broker.latencies.get(RequestCode.PULL_MESSAGE)
    counted = [bits for bits, count in enumerate(histogram.counts if histogram else ()) if count]
    return round((1 << counted[-1]) / 1000) if counted else 0


def _distribution(counts: list[int]) -> str:
    """How many sends took how long: `[<=1ms]:12 [<=2ms]:3 ... [>1s]:0`."""
    words = []
    taken = 0
    for bits, text in _BOUNDS.items():
        until = sum(counts[: bits + 1])
        words.append(f"[<={text}]:{until - taken}")
        taken = until
    return " ".join((*words, f"[>{text}]:{sum(counts) - taken}"))


def _log(broker: Broker) -> dict[str, str]:
    store = broker.store
    end = store.max_physical_offset
    return {
        "commitLogMinOffset": str(store.min_physical_offset),
        "commitLogMaxOffset": str(end),
        "dispatchBehindBytes": str(max(0, end - store.dispatched_offset)),
        "remainHowManyDataToFlush": _bytes_text(max(0, end - store.flushed_offset)),
        "remainHowManyDataToCommit": _bytes_text(max(0, end - store.committed_offset)),
        "remainTransientStoreBufferNumbs": str(store.free_transient_buffers),
        "earliestMessageTimeStamp": str(_earliest_ms(broker)),
    }


def _earliest_ms(broker: Broker) -> int:
    store = broker.store
    if store.max_physical_offset <= store.min_physical_offset:
        return -1
    view = store.record_at(store.min_physical_offset)
    try:
        return -1 if view is None else decode_record(view).store_timestamp
    except CorruptRecord:
        return -1


def _disk(broker: Broker) -> dict[str, str]:
    root = broker.settings.store_path_root_dir
    log_folder = broker.settings.store_path_commit_log or os.path.join(root, "commitlog")
    space = os.statvfs(root)
    unit = space.f_frsize
    ratio = _used_ratio(log_folder)
    return {
        "commitLogDiskRatio": ratio,
        f"commitLogDiskRatio_{log_folder}": ratio,
        "consumeQueueDiskRatio": _used_ratio(root),
        "commitLogDirCapacity": f"Total : {_bytes_text(space.f_blocks * unit)}, "
        f"Free : {_bytes_text(space.f_bfree * unit)}.",
    }


def _used_ratio(path: str) -> str:
    """The used share of a disk, rounded up to a hundredth; -1 when there is no such path."""
    try:
        space = os.statvfs(path)
    except FileNotFoundError:
        return "-1"
    used = space.f_blocks - space.f_bfree
    entire = used + space.f_bavail
    return str(-(-used * 100 // entire) / 100 if entire else 0.0)


def _delays(broker: Broker) -> dict[str, str]:
    levels = range(1, len(broker.settings.delay_levels_ms) + 1)
    progress = {
        f"scheduleMessageOffset_{level}": "{},{}".format(*broker.schedule.progress(level))
        for level in levels
    }
    timers = broker.timers
    return progress | {
        "timerReadBehind": str(timers.read_behind),
        "timerOffsetBehind": str(timers.offset_behind),
        "timerCongestNum": str(timers.pending),
        "timerUnread": str(timers.unread.count),
        "timerEnqueueTps": f"{broker.stats.watched_rate(_ENQUEUED):.2f}",
        "timerDequeueTps": f"{broker.stats.watched_rate(_DEQUEUED):.2f}",
    }


def watch_timers(broker: Broker) -> None:
    """Count timers as they are set and delivered, for their rates."""

    def enqueued() -> int:
        return int(broker.store.max_offset(TIMER_TOPIC, 0)) - int(broker.timers.offset_behind)

    broker.stats.watch(_ENQUEUED, enqueued)
    broker.stats.watch(_DEQUEUED, lambda: enqueued() - int(broker.timers.pending))


def _pools(broker: Broker) -> dict[str, str]:
    info = {"EndTransactionQueueSize": "0"}
    info["EndTransactionThreadPoolQueueCapacity"] = _capacity(
        broker, "endTransactionPoolQueueCapacity"
    )
    for prefix, setting in _POOLS.items():
        info[f"{prefix}Size"] = "0"
        info[f"{prefix}Capacity"] = _capacity(broker, setting)
        info[f"{prefix}HeadWaitTimeMills"] = "0"
    return info


def _capacity(broker: Broker, key: str) -> str:
    known = find_key(key)
    return "0" if known is None else text_of(broker.settings.value_of(known))


def _ours(broker: Broker) -> dict[str, str]:
    """Keys that RocketMQ does not have: why sends are refused, groups whose members subscribe
    differently, the newest epoch of our log (0: no replica has asked yet)."""
    refusal = broker.store.refusals.current
    epochs = broker.replication.epochs()
    info = {
        "replicaEpoch": str(epochs[-1][0][0] if epochs else 0),
        "sendsRefused": refusal.reason if refusal else "",
    }
    if broker.settings.has_arbiter:
        info["failover"] = broker.settings.arbiter_name
    groups = sorted(group.name for group in broker.clients.consumer_groups() if group.conflicts)
    return info | ({"subscriptionConflicts": ",".join(groups)} if groups else {})


def _duration(elapsed_ms: int) -> str:
    minutes, seconds = divmod(max(0, elapsed_ms) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _bytes_text(size: int) -> str:
    """1536 as 1.5 KiB."""
    if size < 1024:
        return f"{size} B"
    power = min(6, (size.bit_length() - 1) // 10)
    return f"{size / 1024**power:.1f} {'KMGTPE'[power - 1]}iB"
