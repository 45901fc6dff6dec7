"""Collections stay short while clients are served; in a quiet moment memory goes back.

Each test runs in its own process: it measures the whole process."""

import subprocess
import sys

import pytest

from aerobee.broker.daemon import garbage

HEAD = """
import gc, time, weakref
from aerobee.broker.daemon.garbage import Garbage, anonymous_bytes

garbage = Garbage()
garbage.begin()

def quiet_look():
    garbage.look()  # from here on the work counts
    time.sleep(0.3)
    garbage.look()
"""


def run(script: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", HEAD + script], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(garbage._libc() is None, reason="this C library gives nothing back")
def test_memory_that_a_burst_has_left_free_is_returned_in_a_quiet_moment() -> None:
    run("""
before = anonymous_bytes()
burst = [bytes(2000) for _ in range(40_000)]
kept = burst[::100]  # pieces that live on all over the heap: it cannot shrink
del burst
held = anonymous_bytes()
assert held > before + (60 << 20), (before, held)
garbage.look()  # much was done since the last look
assert anonymous_bytes() > held - (8 << 20), "given back while clients are served"
time.sleep(0.3)
garbage.look()
assert anonymous_bytes() < held - (50 << 20), (held, anonymous_bytes())
assert all(len(each) == 2000 for each in kept)
""")


def test_collections_do_not_look_at_what_has_survived() -> None:
    run("""
table = {number: [{"name": number}] for number in range(200_000)}
looked_at = []

def count(phase, info):
    if phase == "start":  # the oldest generation holds the others; frozen objects are in none
        looked_at.append(sum(len(gc.get_objects(each)) for each in range(info["generation"] + 1)))

for _ in range(3):  # the newest objects are scanned until they have survived twice
    list([[]] for _ in range(30_000))
gc.callbacks.append(count)
for _ in range(20):
    list([[]] for _ in range(30_000))
gc.callbacks.remove(count)
assert len(looked_at) >= 20, looked_at
assert max(looked_at) < len(table) / 4, looked_at
""")


def test_cycles_that_lived_long_are_collected_in_a_quiet_moment() -> None:
    run("""
class Node:
    pass

nodes = [Node() for _ in range(30_000)]
for node in nodes:
    node.itself = node
gone = weakref.ref(nodes[0])
gc.collect(1)
gc.collect(1)
del nodes, node
gc.collect(1)
assert gone() is not None, "it was to be old"
quiet_look()
assert gone() is None
""")


def test_what_requests_leave_behind_is_collected_in_small_portions() -> None:
    run("""
import asyncio
from aerobee.broker.base.turns import Turns

sizes, left = [], []

def look(phase, info):
    if phase == "start":
        sizes.append(gc.get_count()[0])

def request():
    left.append([[] for _ in range(20)])

async def serve():
    turns = Turns(slice_s=0.0)  # one request in each turn
    gc.callbacks.append(look)
    for _ in range(2_000):
        turns.later(request)
    while len(left) < 2_000:
        await asyncio.sleep(0)
    gc.callbacks.remove(look)

asyncio.run(serve())
assert len(sizes) > 10, sizes
assert max(sizes) < 1_000, sizes
""")


@pytest.mark.skipif(garbage._libc() is None, reason="only glibc has a heap for each thread")
def test_threads_take_memory_from_one_heap() -> None:
    run("""
import ctypes, threading
from pathlib import Path
from aerobee.broker.daemon.garbage import use_one_heap

def where():
    made.append(ctypes.addressof(ctypes.c_char.from_buffer(bytearray(20_000))))

made = []
use_one_heap()
threads = [threading.Thread(target=where) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
heap = next(line for line in Path("/proc/self/maps").read_text().splitlines() if "[heap]" in line)
first, last = (int(word, 16) for word in heap.split()[0].split("-"))
assert all(first <= address < last for address in made), (heap, made)
""")


@pytest.mark.skipif(garbage._libc() is None, reason="only glibc gives memory back at once")
def test_the_memory_of_large_requests_is_used_again() -> None:
    run("""
import resource
from aerobee.broker.daemon.garbage import use_one_heap

def requests(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        bodies = [bytearray(1 << 20) for _ in range(4)]
        del bodies
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

use_one_heap()
first, then = requests(1), requests(20)
assert first > 500, first  # pages
assert then < first, (first, then)
""")
