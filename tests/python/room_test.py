"""Results that Python has dropped make room for other tensors."""

import asyncio
import concurrent.futures
import contextlib
import os
import threading

import agmm
import agmm.aio
import numpy as np
import pytest
import safetensors.numpy
from support import PATIENCE_S

SIDE = 1800  # two copies of SIDE x SIDE floats fit in a device's 32 MiB, and three do not
WHOLE = "A[M_x, K] * B[K, N_x] -> C[M, N]"
LEFT, RIGHT = np.ones((SIDE, 2), np.float32), np.ones((2, SIDE), np.float32)
LARGE = np.ones((SIDE, SIDE), np.float32)


@pytest.fixture
def client():
    with agmm.local(2, heap="32MiB", threads=1) as client:
        yield client


def load(client, folder):
    np.save(folder / "P.npy", LARGE)
    return client.load(folder / "P.npy", {"*": "[M, N]"})["P"]


CALLS = {
    "put": lambda client, folder: client.put("P", LARGE, "[M, N]"),
    "a put of blocks": lambda client, folder: client.put("P", LARGE.T, "[M, N]"),
    "fill": lambda client, folder: client.fill("P", LARGE.shape, "[M, N]"),
    "create": lambda client, folder: client.create("P", LARGE.shape, "[M, N]"),
    "load": load,
    "run": lambda client, folder: client.run(WHOLE, "L", "R", "P"),
    "submit": lambda client, folder: client.submit(WHOLE, "L", "R", "P").wait(),
    "matmul": lambda client, folder: client.matmul(WHOLE, "L", "R", out="P"),
}


def results_that_fill(client):
    """Returns two results, beside which the devices have no room for another one."""
    client.put("L", LEFT, "[M_x, K]")
    client.put("R", RIGHT, "[K, N_x]")
    results = [client.matmul(WHOLE, "L", "R") for _ in range(2)]
    with pytest.raises(agmm.ResourceExhausted):
        client.put("P", LARGE, "[M, N]")
    return results


@pytest.mark.parametrize("name", CALLS)
def test_dropped_results_make_room(client, tmp_path, name):
    results = results_that_fill(client)
    del results
    CALLS[name](client, tmp_path)
    assert {tensor.name for tensor in client.tensors()} == {"L", "R", "P"}


@pytest.mark.parametrize("name", CALLS)
def test_results_in_a_cycle_make_room_once_memory_is_full(client, no_collector, tmp_path, name):
    results = results_that_fill(client)
    results.append(results)
    del results
    CALLS[name](client, tmp_path)
    assert {tensor.name for tensor in client.tensors()} == {"L", "R", "P"}


def test_results_in_use_are_kept(client, tmp_path):
    results = results_that_fill(client)
    for name in ("put", "fill", "create", "run"):
        with pytest.raises(agmm.ResourceExhausted):
            CALLS[name](client, tmp_path)
    assert (results[0].numpy() == 2).all()


def write_to_a_pipe(path, tensors):
    """Makes a named pipe, and writes tensors to its first reader."""
    os.mkfifo(path)

    def write():
        with contextlib.suppress(BrokenPipeError):
            path.write_bytes(safetensors.numpy.save(tensors))

    threading.Thread(target=write, daemon=True).start()


def load_of_a_pipe(client, path, **options):
    """Returns what a load gives. If it does not end, another writer ends it."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(client.load, path, {"*": "[M, N]"}, **options).result(PATIENCE_S)
        except concurrent.futures.TimeoutError:
            os.close(os.open(path, os.O_WRONLY))
            raise


def test_garbage_makes_room_before_the_load_of_a_pipe(client, no_collector, tmp_path):
    results = results_that_fill(client)
    results.append(results)
    del results
    write_to_a_pipe(tmp_path / "P.safetensors", {"P": LARGE})
    assert (load_of_a_pipe(client, tmp_path / "P.safetensors")["P"].numpy() == 1).all()


def test_a_pipe_is_not_read_again(client, tmp_path):
    results = results_that_fill(client)
    write_to_a_pipe(tmp_path / "P.safetensors", {"first": LEFT, "second": LARGE})
    with pytest.raises(agmm.ResourceExhausted):
        load_of_a_pipe(client, tmp_path / "P.safetensors", progress=lambda moved, total: results.clear())
    assert len(client._dropped) == 2


def test_a_load_waits_until_dropped_results_are_deleted(client, monkeypatch, tmp_path):
    delete = agmm.Client.delete

    def delete_slowly(self, tensor, *, timeout=None):
        if timeout is not None:
            raise agmm.DeadlineExceeded("the daemon is slow")
        delete(self, tensor)

    results = results_that_fill(client)
    del results
    monkeypatch.setattr(agmm.Client, "delete", delete_slowly)
    load(client, tmp_path)


def test_dropped_results_of_asyncio_make_room(no_collector):
    async def main(endpoint):
        async with agmm.aio.connect(endpoint) as client:
            await client.put("L", LEFT, "[M_x, K]")
            await client.put("R", RIGHT, "[K, N_x]")
            for call in (lambda: client.put("P", LARGE, "[M, N]"), lambda: client.run(WHOLE, "L", "R", "P")):
                results = [await client.matmul(WHOLE, "L", "R") for _ in range(2)]
                results.append(results)
                del results
                await call()
                await client.delete("P")

    daemon = agmm.local(2, heap="32MiB", threads=1)
    try:
        daemon.start()
        asyncio.run(main(daemon.endpoint))
    finally:
        daemon.close()
