"""Memory over 10,000 calls: neither Python's objects nor the process grow."""

import gc
import os
import sys

import agmm
import numpy as np
import pytest
from support import SPEC

A, B = np.ones((20, 30), np.float32), np.ones((30, 10), np.float32)
MOST_BYTES = 4 << 20  # of caches and of allocators that fragment; a leak of 8 KiB in each call of a kind exceeds it


def refused(client):
    with pytest.raises(agmm.NotFound):
        client.get("absent")


def interrupted_by_progress(client):
    def progress(moved, total):
        raise LookupError

    with pytest.raises(LookupError):
        client.get("C", progress=progress)


def mapped(client):
    with client.map("C") as mapping:
        assert mapping.shards[0].array[0, 0] == 30


# Each kind of call and how many there are of it: 10,000 in all.
CALLS = {
    "put": (500, lambda client: client.put("A", A, "[M_x, K]")),
    "put of another order": (500, lambda client: client.put("B", np.asfortranarray(B), "[K, N_x]")),
    "get": (500, lambda client: client.get("C")),
    "get into another order": (500, lambda client: client.get("C", out=np.empty((10, 20), np.float32).T)),
    "get with progress": (500, lambda client: client.get("C", progress=lambda moved, total: None)),
    "get that progress ends": (500, interrupted_by_progress),
    "run": (2900, lambda client: client.run(SPEC, "A", "B", "C")),
    "matmul": (100, lambda client: client.matmul(SPEC, A, "B", out="C")),
    "submit and wait": (500, lambda client: client.submit(SPEC, "A", "B", "C").wait()),
    "done": (500, lambda client: client.submit(SPEC, "A", "B", "C").done().result()),
    "watch": (500, lambda client: list(client.submit(SPEC, "A", "B", "C").watch())),
    "map": (500, mapped),
    "an error": (1000, refused),
    "world": (500, lambda client: client.world()),
    "tensors": (500, lambda client: client.tensors()),
}


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def fast():
    with agmm.local(devices=2, heap="16MiB", threads=1) as client:
        client.put("A", A, "[M_x, K]")
        client.put("B", B, "[K, N_x]")
        client.run(SPEC, "A", "B", "C")
        yield client


@pytest.mark.parametrize("kind", CALLS)
def test_calls_leave_no_memory(fast, kind):
    count, call = CALLS[kind]
    for _ in range(count // 10):
        call(fast)
    gc.collect()
    before_bytes, blocks, objects = resident_bytes(), sys.getallocatedblocks(), len(gc.get_objects())
    for _ in range(count):
        call(fast)
    gc.collect()
    assert sys.getallocatedblocks() - blocks < count // 2, "one of Python's blocks for every second call"
    assert len(gc.get_objects()) - objects < count // 2
    assert resident_bytes() - before_bytes < MOST_BYTES


def test_clients_leave_no_memory(fast, daemon):
    """A client has threads and connections of its own."""
    def connect():
        with agmm.connect(daemon.endpoint) as client:
            client.world()

    for _ in range(10):
        connect()
    before = {name: len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task")}
    before_bytes = resident_bytes()
    for _ in range(50):
        connect()
    gc.collect()
    for name, count in before.items():
        assert len(os.listdir(f"/proc/self/{name}")) <= count + 25, name
    assert resident_bytes() - before_bytes < 2 * MOST_BYTES


def test_the_counts_add_up():
    assert sum(count for count, _ in CALLS.values()) == 10_000
