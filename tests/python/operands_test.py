"""The operands of layers: tensors for X and Y that calls take in turn."""

import gc
import threading

import agmm
import numpy as np
import pytest
from agmm.operands import Pool, Shape
from support import integers

SPEC = "X[M_x, K] * W[K, N_x] -> Y[M, N_x]"


@pytest.fixture
def weight(client):
    return client.put("W", integers(6, 4, 1), "[K, N_x]")


def multiply(pool, weight, x):
    """Checks a product. Returns true if it passed through mappings."""
    y = np.full((len(x), 4), np.nan, np.float32)
    shape = Shape(SPEC, len(x), 6, weight.dtype, 4, weight.mesh, weight.ranks)
    job, mapped = pool.multiply(shape, weight, x, y)
    assert job.state == agmm.JobState.SUCCEEDED
    np.testing.assert_array_equal(y, x @ integers(6, 4, 1))
    return mapped


def of_operands(client):
    return sorted(tensor.name.rsplit(".", 1)[1] for tensor in client.tensors() if tensor.name.startswith("agmm.operands."))


def test_calls_of_one_shape_use_the_same_tensors(client, weight):
    pool = Pool.of(client)
    assert multiply(pool, weight, integers(8, 6, 2))
    before = {tensor.id for tensor in client.tensors()}
    for seed in range(10):
        assert multiply(pool, weight, integers(8, 6, seed))
    assert {tensor.id for tensor in client.tensors()} == before
    assert of_operands(client) == ["x", "y"]


def test_calls_at_once_have_their_own(client, weight):
    pool = Pool.of(client)
    wrong = []

    def use(seed):
        try:
            for round in range(10):
                multiply(pool, weight, integers(8, 6, 10 * seed + round))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(of_operands(client)) <= 16


def test_few_idle_ones_are_kept(client, weight):
    pool = Pool.of(client)
    for rows in range(1, 13):
        multiply(pool, weight, integers(rows, 6, rows))
    assert of_operands(client) == ["x"] * 8 + ["y"] * 8
    last = {tensor.id for tensor in client.tensors()}
    # The one that was used last is still there when others had to go.
    multiply(pool, weight, integers(12, 6, 1))
    multiply(pool, weight, integers(1, 6, 1))
    multiply(pool, weight, integers(12, 6, 1))
    assert len({tensor.id for tensor in client.tensors()} - last) == 2


def test_a_pool_goes_with_its_last_user(client, weight):
    pool = Pool.of(client)
    assert Pool.of(client) is pool
    multiply(pool, weight, integers(8, 6, 2))
    gc.disable()  # reference counts suffice
    try:
        del pool
        client._sweep()
        assert of_operands(client) == []
    finally:
        gc.enable()


def test_operands_that_failed_are_dropped(client, weight):
    pool = Pool.of(client)
    multiply(pool, weight, integers(8, 6, 2))
    with pytest.raises(agmm.InvalidArgument) as kept:  # with a traceback, which refers to them
        multiply(pool, weight, np.zeros((8, 5), np.float32))
    client._sweep()
    assert of_operands(client) == []
    multiply(pool, weight, integers(8, 6, 4))
    client._sweep()
    assert of_operands(client) == ["x", "y"]
    del kept


@pytest.mark.parametrize("ends", [["x"], ["y"], ["x", "y"]], ids="".join)
def test_idle_ones_that_were_deleted_are_replaced(client, weight, ends):
    pool = Pool.of(client)
    gate = threading.Barrier(3)
    threads = [threading.Thread(target=lambda: (gate.wait(), multiply(pool, weight, integers(8, 6, 2)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for tensor in client.tensors():
        if tensor.name.startswith("agmm.operands") and tensor.name[-1] in ends:
            tensor.delete()
    for seed in range(5):
        assert multiply(pool, weight, integers(8, 6, seed))
    client._sweep()
    names = of_operands(client)
    assert names.count("x") <= 3 and names.count("y") <= 3


def test_idle_ones_of_a_lost_node_are_replaced():
    with agmm.world([1, 1], heap="16MiB", threads=1) as world:
        client = world.clients[0]
        weight = client.put("W", integers(6, 4, 1), "[K, N_x]", mesh="x=1", ranks=[0])
        pool = Pool.of(client)
        assert multiply(pool, weight, integers(8, 6, 2))
        world.kill(1)
        world.start(1)
        world.wait_ready()
        weight = client.put("W", integers(6, 4, 1), "[K, N_x]", mesh="x=1", ranks=[0])
        for seed in range(3):
            assert multiply(pool, weight, integers(8, 6, seed))


@pytest.mark.parametrize("end", [agmm.Unavailable, KeyboardInterrupt])
def test_calls_that_fail_do_not_fill_the_heap(monkeypatch, end):
    def run(*_, **__):
        raise end("as if it ended midway")

    with agmm.local(1, heap="8MiB", threads=1) as client:
        weight = client.put("W", integers(6, 4, 1), "[K, N_x]")
        pool = Pool.of(client)
        x = integers(26000, 6, 1)
        kept = []
        with monkeypatch.context() as patched:
            patched.setattr(agmm.Client, "run", run)
            for _ in range(20):
                with pytest.raises(end) as raised:
                    multiply(pool, weight, x)
                kept.append(raised)
        multiply(pool, weight, x)


def test_idle_ones_make_room_in_a_full_heap():
    with agmm.local(2, heap="8MiB", threads=1) as client:
        weight = client.put("W", integers(6, 4, 1), "[K, N_x]")
        pool = Pool.of(client)
        for rows in (8000, 26000, 8000, 26000):  # a row takes 64 bytes of X on a device, and 128 of Y
            multiply(pool, weight, integers(rows, 6, rows))


def test_devices_of_several_daemons_take_puts_and_gets():
    with agmm.world([1, 1], heap="16MiB", threads=1) as world:
        weight = world.clients[0].put("W", integers(6, 4, 1), "[K, N_x]")
        pool = Pool.of(world.clients[0])
        assert not multiply(pool, weight, integers(8, 6, 2))
        assert not multiply(pool, weight, integers(8, 6, 3))


def test_devices_of_another_daemon_take_puts_and_gets():
    with agmm.world([1, 1], heap="16MiB", threads=1) as world:
        weight = world.clients[0].put("W", integers(6, 4, 1), "[K, N_x]", mesh="x=1", ranks=[1])
        pool = Pool.of(world.clients[0])
        for seed in range(3):
            assert not multiply(pool, weight, integers(8, 6, seed))


def test_beyond_the_daemons_mappings_operands_are_put_and_fetched_until_there_are_fewer(client, weight):
    pool = Pool.of(client)
    assert multiply(pool, weight, integers(7, 6, 2))
    held = []
    with pytest.raises(agmm.ResourceExhausted, match="mappings"):
        while True:
            held.append(client.map("W"))
    assert not multiply(pool, weight, integers(8, 6, 2))
    held.pop().close()  # X can be mapped now, and Y cannot
    assert not multiply(pool, weight, integers(8, 6, 3))
    for mapping in held:
        mapping.close()
    assert multiply(pool, weight, integers(8, 6, 4))
    assert multiply(pool, weight, integers(9, 6, 5))


def test_a_closed_client_is_named_as_the_reason(client, weight):
    pool = Pool.of(client)
    multiply(pool, weight, integers(8, 6, 2))
    client.close()
    for rows in (8, 9):
        with pytest.raises(agmm.FailedPrecondition, match="the client of weight 'W' is closed; connect again") as raised:
            multiply(pool, weight, integers(rows, 6, 3))
        assert "agmm.operands" not in str(raised.value)
