"""The store's settings: RocketMQ's store keys in snake case, with its defaults and units."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

from aerobee.broker.store.files.layout import Layout
from aerobee.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# Their messages are due at a time: their store times follow the clock, even after it was set back.
TIMED_TOPICS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC})


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Milliseconds per level; level 1 is the first."""
    try:
        return tuple(int(word[:-1]) * _UNIT_MS[word[-1]] for word in text.split())
    except (KeyError, ValueError):
        raise ValueError(
            f"messageDelayLevel {text!r} is not a list like '1s 5s 1m 2h' (units s, m, h, d)"
        ) from None


@dataclass(frozen=True)
class StoreSettings:
    store_path_root_dir: str
    store_path_commit_log: str = ""  # empty: <root>/commitlog

    # files, bytes
    mapped_file_size_commit_log: int = 1024 * 1024 * 1024
    mapped_file_size_consume_queue: int = 300_000 * 20
    enable_consume_queue_ext: bool = False
    mapped_file_size_consume_queue_ext: int = 48 * 1024 * 1024
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    message_index_enable: bool = True
    message_index_safe: bool = False

    # messages
    max_message_size: int = 4 * 1024 * 1024
    auto_message_version_on_topic_len: bool = True
    enabled_append_prop_crc: bool = True
    message_delay_level: str = DELAY_LEVELS
    broker_role: str = "ASYNC_MASTER"
    has_arbiter: bool = False  # consumers see only what is confirmed
    os_page_cache_busy_time_out_mills: int = 1000

    # flush, milliseconds and 4 KB pages
    flush_disk_type: str = "ASYNC_FLUSH"
    sync_flush_timeout: int = 5000
    warm_maped_file_enable: bool = True
    write_without_mmap: bool = True
    flush_interval_commit_log: int = 500
    flush_commit_log_timed: bool = True
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = 10_000
    flush_interval_consume_queue: int = 1000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval: int = 60_000
    transient_store_pool_enable: bool = False
    transient_store_pool_size: int = 5
    commit_interval_commit_log: int = 200
    commit_commit_log_least_pages: int = 4
    commit_commit_log_thorough_interval: int = 200

    # recovery
    check_crc_on_recover: bool = True

    # cleaning: hours, percent, milliseconds
    file_reserved_time: int = 72
    delete_when: str = "04"
    disk_max_used_space_ratio: int = 75
    disk_space_clean_forcibly_ratio: int = 85
    disk_space_warning_level_ratio: int = 90
    disk_reserved_bytes: int = 10 * 1024 * 1024 * 1024  # 0: the ratios act alone
    disk_guard_enable: bool = True  # off in an embedded broker
    clean_file_forcibly_enable: bool = True
    clean_resource_interval: int = 10_000
    delete_commit_log_files_interval: int = 100
    destroy_maped_file_interval_forcibly: int = 120_000
    delete_file_batch_max: int = 10

    # reading
    max_filter_message_size: int = 16_000
    access_message_in_memory_max_ratio: int = 40
    max_msgs_num_batch: int = 64

    @cached_property
    def layout(self) -> Layout:
        root = os.path.abspath(os.path.expanduser(self.store_path_root_dir))
        log = self.store_path_commit_log or os.path.join(root, "commitlog")
        return Layout(root, os.path.abspath(os.path.expanduser(log)))

    @cached_property
    def delay_levels_ms(self) -> tuple[int, ...]:
        return parse_delay_levels(self.message_delay_level)

    def delay_ms_of_level(self, level: int) -> int:
        levels = self.delay_levels_ms
        return levels[min(level, len(levels)) - 1] if level > 0 and levels else 0

    @property
    def sync_flush(self) -> bool:
        return self.flush_disk_type == "SYNC_FLUSH"

    @property
    def prewrites(self) -> bool:
        """Whether blocks of the log are written before they are needed."""
        return self.warm_maped_file_enable and self.sync_flush

    @property
    def readies(self) -> bool:
        """Whether whole files of the log are prepared for writes through their maps. In SYNC_FLUSH
        only as far as their blocks are written ahead: a sync would write all prepared pages."""
        return not self.write_without_mmap and not self.sync_flush

    @property
    def pool_enabled(self) -> bool:
        """The pool is for masters that wait neither for the disk nor for slaves."""
        waits_for_nobody = not self.sync_flush and self.broker_role == "ASYNC_MASTER"
        return self.transient_store_pool_enable and waits_for_nobody

    @property
    def is_slave(self) -> bool:
        return self.broker_role == "SLAVE"
