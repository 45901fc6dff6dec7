"""Settings of the store: places, sizes, flushing, cleaning."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from aerobee.broker.settings.fields import setting


def _check_hours(value: str) -> str | None:
    hours = value.split(";")
    if all(hour.isdigit() and int(hour) < 24 for hour in hours):
        return None
    return "write hours of the day from 00 to 23, separated by ;"


def _check_queue_file_size(value: int) -> str | None:
    return None if value % 20 == 0 else "it must be a multiple of 20, the size of one entry"


def default_store_path(env: Mapping[str, str]) -> str:
    """The default folder of the store."""
    home = env.get("HOME") or os.path.expanduser("~")
    data = env.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share")
    return os.path.join(data, "aerobee", "store")


@dataclass(init=False, repr=False, eq=False)  # a part of Settings
class StorageSettings:
    """Folders, sizes, flushing and retention."""

    # --- places
    store_path_root_dir: str = setting(
        "",
        "Folder of the store; empty: ~/.local/share/aerobee/store.",
        upstream="$HOME/store",
        why="the place where programs keep their data",
    )
    store_path_commit_log: str = setting("", "Folder of the commit log; empty: ROOT/commitlog.")
    mapped_file_size_commit_log: int = setting(
        1073741824,
        "Length of a commit log file; it cannot be changed later.",
        unit="bytes",
        low=4096,
        high=2147483647,
        aliases=("mapedFileSizeCommitLog",),
    )
    mapped_file_size_consume_queue: int = setting(
        6000000,
        "Length of a consume queue file; it cannot be changed later.",
        unit="bytes",
        low=20,
        high=2147483640,
        aliases=("mapedFileSizeConsumeQueue",),
        check=_check_queue_file_size,
    )
    enable_consume_queue_ext: bool = setting(
        False, "Keep the extension files of the consume queues."
    )
    mapped_file_size_consume_queue_ext: int = setting(
        50331648, "Length of such a file.", unit="bytes", low=4096
    )
    message_index_enable: bool = setting(True, "Keep the index by key.")
    message_index_safe: bool = setting(
        False, "After a crash check index files too, instead of dropping the last one."
    )
    max_hash_slot_num: int = setting(5000000, "Slots of an index file.", low=1, high=2**31 - 1)
    max_index_num: int = setting(20000000, "Entries of an index file.", low=2, high=2**31 - 1)

    # --- flushing
    flush_disk_type: str = setting(
        "ASYNC_FLUSH",
        "SYNC_FLUSH: a send is answered when it is on disk; ASYNC_FLUSH: when it is in memory.",
        choices=("ASYNC_FLUSH", "SYNC_FLUSH"),
    )
    sync_flush_timeout: int = setting(
        5000, "How long a send waits for the disk before FLUSH_DISK_TIMEOUT.", unit="ms", low=1
    )
    warm_maped_file_enable: bool = setting(
        True,
        "SYNC_FLUSH: write the log's blocks, 8 MiB ahead of the messages, not only allocate them.",
        upstream="false",
        why="syncs are faster, and none succeeds for data that a failing file system has lost",
    )
    write_without_mmap: bool = setting(
        True,
        "Write the log by pwrite; off: through its mapped files, which are prepared ahead.",
        upstream="false",
        why="as fast or faster, written to disk once, and no SIGBUS when a device goes away",
    )
    flush_interval_commit_log: int = setting(500, "How often the log is flushed.", unit="ms", low=1)
    flush_commit_log_least_pages: int = setting(
        4, "Flush the log when this many pages are dirty ...", unit="pages of 4 KiB", low=0
    )
    flush_commit_log_thorough_interval: int = setting(
        10000, "... or this long after the last flush.", unit="ms", low=1
    )
    flush_commit_log_timed: bool = setting(
        True, "Flush by the clock only; off: each message wakes the flush."
    )
    flush_interval_consume_queue: int = setting(
        1000, "How often the queues are flushed.", unit="ms", low=1
    )
    flush_consume_queue_least_pages: int = setting(
        2, "Flush a queue when this many pages are dirty ...", unit="pages of 4 KiB", low=0
    )
    flush_consume_queue_thorough_interval: int = setting(
        60000, "... or this long after the last flush.", unit="ms", low=1
    )
    transient_store_pool_enable: bool = setting(
        False, "Write into memory buffers first; they are copied to the files in the background."
    )
    transient_store_pool_size: int = setting(
        5, "Number of those buffers, each as long as a log file.", low=1, high=64
    )
    commit_interval_commit_log: int = setting(
        200, "How often those buffers are copied.", unit="ms", low=1
    )
    commit_commit_log_least_pages: int = setting(
        4, "Copy them when this many pages are pending ...", unit="pages of 4 KiB", low=0
    )
    commit_commit_log_thorough_interval: int = setting(
        200, "... or this long after the last copy.", unit="ms", low=1
    )

    # --- records
    auto_message_version_on_topic_len: bool = setting(
        True, "Use the second record version for topics longer than 127."
    )
    enabled_append_prop_crc: bool = setting(
        True,
        "Keep a checksum of the whole record in its properties.",
        key="enabledAppendPropCRC",
        upstream="false",
        why="damage in any field is found; RocketMQ 5 reads it and 4 ignores it",
    )
    check_crc_on_recover: bool = setting(
        True, "Check the checksums of bodies in a recovery.", key="checkCRCOnRecover"
    )
    os_page_cache_busy_time_out_mills: int = setting(
        1000, "Refuse sends as busy while a write takes longer than this.", unit="ms", low=1
    )

    access_message_in_memory_max_ratio: int = setting(
        40,
        "Messages further behind than this share of the memory count as on disk.",
        unit="%",
        low=0,
        high=100,
    )

    # --- cleaning
    file_reserved_time: int = setting(
        72, "How long files are kept.", unit="h", low=0, high=24 * 366 * 100, runtime=True
    )
    delete_when: str = setting(
        "04",
        "The hours at which expired files are deleted.",
        unit="hours of the day",
        check=_check_hours,
        runtime=True,
    )
    clean_resource_interval: int = setting(
        10000, "Interval of checks for files to delete.", unit="ms", low=10
    )
    delete_commit_log_files_interval: int = setting(
        100, "Pause between two deletions of log files.", unit="ms", low=0
    )
    destroy_maped_file_interval_forcibly: int = setting(
        120000,
        "Delete a file in use after this time.",
        unit="ms",
        low=0,
        aliases=("destroyMappedFileIntervalForcibly",),
    )
    delete_file_batch_max: int = setting(10, "Files deleted in one round at most.", low=1)
    disk_max_used_space_ratio: int = setting(
        75,
        "Used share of the disk at which expired files are deleted at any hour.",
        unit="%",
        low=10,
        high=95,
        runtime=True,
    )
    disk_space_clean_forcibly_ratio: int = setting(
        85,
        "Used share at which the oldest files are deleted regardless of age.",
        unit="%",
        low=20,
        high=98,
        runtime=True,
    )
    disk_space_warning_level_ratio: int = setting(
        90, "Used share at which sends are refused.", unit="%", low=35, high=99, runtime=True
    )
    clean_file_forcibly_enable: bool = setting(
        True, "Allow deletion regardless of age.", runtime=True
    )
    disk_guard_enable: bool = setting(
        True, "Refuse sends on a full disk; off in a broker inside a test.", ours=True
    )
    disk_reserved_bytes: int = setting(
        10 << 30,
        "The three shares apply only while less than this is free. 0: they apply alone, "
        "as they do when one of them is set and this is not.",
        unit="bytes",
        low=0,
        ours=True,
        runtime=True,
    )
