"""Results that Python has dropped make room for other tensors."""

import asyncio
import gc

import agmm
import agmm.aio
import numpy as np
import pytest

SIDE = 1800  # two copies of SIDE x SIDE floats fit in a device's 32 MiB, and three do not
WHOLE = "A[M_x, K] * B[K, N_x] -> C[M, N]"
LEFT, RIGHT = np.ones((SIDE, 2), np.float32), np.ones((2, SIDE), np.float32)
LARGE = np.ones((SIDE, SIDE), np.float32)


@pytest.fixture
def client():
    with agmm.local(2, heap="32MiB", threads=1) as client:
        yield client


@pytest.fixture
def no_collector():
    gc.disable()
    yield
    gc.enable()


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
