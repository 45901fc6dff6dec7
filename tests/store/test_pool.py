"""The pool of buffers in front of the log."""

from __future__ import annotations

from .conftest import OpenStore, abandon, dispatch, message, read_all


def test_the_pool_shows_readers_only_what_is_committed(open_store: OpenStore) -> None:
    store = open_store(transient_store_pool_enable=True, transient_store_pool_size=2)
    assert store.commit is not None
    store.put([message(body=b"1")])
    dispatch(store)
    assert (store.committed_offset, store.max_offset("T", 0)) == (0, 0)
    assert not store.commit.step(least_pages=4)
    assert store.commit.step()
    dispatch(store)
    assert [m.body for m in read_all(store)] == [b"1"]
    assert store.flushed_offset == 0
    store.flush.step()
    assert store.flushed_offset == store.committed_offset == store.max_physical_offset


def test_a_full_file_is_committed_whatever_its_pages_and_its_buffer_returns(
    open_store: OpenStore,
) -> None:
    store = open_store(transient_store_pool_enable=True, transient_store_pool_size=2)
    assert store.commit is not None and store._pool is not None
    store.put([message(body=b"x" * 30_000) for _ in range(3)])
    assert store._pool.available == 0
    store.commit.step(least_pages=100)
    assert store._pool.available == 1
    store.put([message(body=b"x" * 30_000) for _ in range(20)])  # more files than buffers
    while store.commit.step():
        pass
    dispatch(store)
    assert len(read_all(store)) == 23
    store.close()
    store = open_store()
    assert len(read_all(store)) == 23


def test_what_the_pool_holds_is_lost_with_the_process_and_nothing_else(
    open_store: OpenStore,
) -> None:
    store = open_store(transient_store_pool_enable=True)
    assert store.commit is not None
    store.put([message(body=b"kept")])
    store.commit.step()
    store.put([message(body=b"lost")])
    abandon(store)
    store = open_store()
    assert [m.body for m in read_all(store)] == [b"kept"]


def test_more_files_than_the_pool_has_buffers_show_no_reader_what_is_not_committed(
    open_store: OpenStore,
) -> None:
    store = open_store(transient_store_pool_enable=True, transient_store_pool_size=2)
    assert store.commit is not None
    bodies = [b"%d" % number + b"x" * 60_000 for number in range(12)]  # a file each
    store.put([message(body=body) for body in bodies])
    dispatch(store)
    store.flush.step()
    assert store.max_offset("T", 0) == store.committed_offset == store.flushed_offset == 0
    store.commit.step()
    dispatch(store)
    assert [each.body for each in read_all(store)] == bodies
