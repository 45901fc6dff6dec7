"""The store's share of the settings: names, units and defaults are those of `broker.settings`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

from aerobee.broker.settings.messages import MessageSettings
from aerobee.broker.settings.replication import ReplicationSettings
from aerobee.broker.settings.storage import StorageSettings
from aerobee.broker.store.files.layout import Layout
from aerobee.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC

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
    mapped_file_size_commit_log: int = StorageSettings.mapped_file_size_commit_log
    mapped_file_size_consume_queue: int = StorageSettings.mapped_file_size_consume_queue
    enable_consume_queue_ext: bool = StorageSettings.enable_consume_queue_ext
    mapped_file_size_consume_queue_ext: int = StorageSettings.mapped_file_size_consume_queue_ext
    max_hash_slot_num: int = StorageSettings.max_hash_slot_num
    max_index_num: int = StorageSettings.max_index_num
    message_index_enable: bool = StorageSettings.message_index_enable
    message_index_safe: bool = StorageSettings.message_index_safe

    # messages
    max_message_size: int = MessageSettings.max_message_size
    auto_message_version_on_topic_len: bool = StorageSettings.auto_message_version_on_topic_len
    enabled_append_prop_crc: bool = StorageSettings.enabled_append_prop_crc
    message_delay_level: str = MessageSettings.message_delay_level
    broker_role: str = ReplicationSettings.broker_role
    has_arbiter: bool = False  # consumers see only what is confirmed
    os_page_cache_busy_time_out_mills: int = StorageSettings.os_page_cache_busy_time_out_mills

    # flush, milliseconds and 4 KB pages
    flush_disk_type: str = StorageSettings.flush_disk_type
    sync_flush_timeout: int = StorageSettings.sync_flush_timeout
    warm_maped_file_enable: bool = StorageSettings.warm_maped_file_enable
    write_without_mmap: bool = StorageSettings.write_without_mmap
    flush_interval_commit_log: int = StorageSettings.flush_interval_commit_log
    flush_commit_log_timed: bool = StorageSettings.flush_commit_log_timed
    flush_commit_log_least_pages: int = StorageSettings.flush_commit_log_least_pages
    flush_commit_log_thorough_interval: int = StorageSettings.flush_commit_log_thorough_interval
    flush_interval_consume_queue: int = StorageSettings.flush_interval_consume_queue
    flush_consume_queue_least_pages: int = StorageSettings.flush_consume_queue_least_pages
    flush_consume_queue_thorough_interval: int = (
        StorageSettings.flush_consume_queue_thorough_interval
    )
    transient_store_pool_enable: bool = StorageSettings.transient_store_pool_enable
    transient_store_pool_size: int = StorageSettings.transient_store_pool_size
    commit_interval_commit_log: int = StorageSettings.commit_interval_commit_log
    commit_commit_log_least_pages: int = StorageSettings.commit_commit_log_least_pages
    commit_commit_log_thorough_interval: int = StorageSettings.commit_commit_log_thorough_interval

    # recovery
    check_crc_on_recover: bool = StorageSettings.check_crc_on_recover

    # cleaning: hours, percent, milliseconds
    file_reserved_time: int = StorageSettings.file_reserved_time
    delete_when: str = StorageSettings.delete_when
    disk_max_used_space_ratio: int = StorageSettings.disk_max_used_space_ratio
    disk_space_clean_forcibly_ratio: int = StorageSettings.disk_space_clean_forcibly_ratio
    disk_space_warning_level_ratio: int = StorageSettings.disk_space_warning_level_ratio
    disk_reserved_bytes: int = StorageSettings.disk_reserved_bytes  # 0: the ratios act alone
    disk_guard_enable: bool = StorageSettings.disk_guard_enable  # off in an embedded broker
    clean_file_forcibly_enable: bool = StorageSettings.clean_file_forcibly_enable
    clean_resource_interval: int = StorageSettings.clean_resource_interval
    delete_commit_log_files_interval: int = StorageSettings.delete_commit_log_files_interval
    destroy_maped_file_interval_forcibly: int = StorageSettings.destroy_maped_file_interval_forcibly
    delete_file_batch_max: int = StorageSettings.delete_file_batch_max

    # reading
    max_filter_message_size: int = MessageSettings.max_filter_message_size
    access_message_in_memory_max_ratio: int = StorageSettings.access_message_in_memory_max_ratio
    max_msgs_num_batch: int = MessageSettings.max_msgs_num_batch

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
