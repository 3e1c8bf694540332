"""agmm.world: several daemons on this host, lost and started again."""

import os
import signal

import agmm
import numpy as np
import pytest
from support import SPEC

HEAP = "16MiB"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    path = tmp_path / "t"
    path.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(path))
    return path


@pytest.fixture
def world(folder):
    with agmm.world([2, 2], heap=HEAP) as world:
        yield world


def multiply(client) -> None:
    a = np.arange(32, dtype=np.float32).reshape(4, 8)
    b = np.arange(64, dtype=np.float32).reshape(8, 8)
    assert np.array_equal(client.matmul(SPEC, a, b, out="C").numpy(), a @ b)


def test_a_product_over_two_daemons(world):
    assert [device.rank for device in world.clients[0].world().devices] == [0, 1, 2, 3]
    for client in world.clients:
        multiply(client)


def test_a_killed_daemon_is_lost_and_comes_back(world):
    client = world.clients[0]
    tensor = client.put("W", np.ones((4, 4), np.float32), "[K, N_x]")
    world.kill(1)
    assert not world.running(1) and "world complete" in world.log(1)
    with pytest.raises(agmm.Error):
        tensor.numpy()
    with pytest.raises(agmm.Unavailable):
        world.wait_ready()
    world.start(1)
    world.wait_ready()
    for each in world.clients:
        multiply(each)


def test_the_first_daemon_comes_back_too(world):
    world.clients[0].put("W", np.ones((4, 4), np.float32), "[K, N_x]")
    world.kill(0)
    world.kill(0)
    world.start(0)
    world.wait_ready()
    assert world.clients[1].tensors() == []
    for each in world.clients:
        multiply(each)


def test_a_stopped_daemon_makes_the_wait_end_by_its_deadline(world):
    os.kill(world.pid(1), signal.SIGSTOP)
    # Until then, threads of the daemon may still answer.
    os.waitid(os.P_PID, world.pid(1), os.WSTOPPED | os.WNOWAIT)
    with pytest.raises(agmm.DeadlineExceeded, match=r"daemon [01] is not ready after 1 s"):
        world.wait_ready(1)
    os.kill(world.pid(1), signal.SIGCONT)
    world.wait_ready()


def test_wrong_calls_are_refused(world):
    with pytest.raises(agmm.FailedPrecondition, match="daemon 1 runs already"):
        world.start(1)
    for index in (2, -1, "n0"):
        with pytest.raises(IndexError, match="there is no daemon .* in this world; its daemons are 0 to 1"):
            world.kill(index)
    for devices in ([], 2, "22", None):
        with pytest.raises(agmm.InvalidArgument, match=r"such as \[2, 2\]"):
            agmm.world(devices)
    with pytest.raises(agmm.InvalidArgument):
        agmm.world([2, 0])


def test_two_worlds_do_not_meet(world):
    with agmm.world([1, 1], heap=HEAP) as other:
        world.clients[0].put("A", np.zeros((2, 2), np.float32), "[M, K]")
        assert other.clients[1].tensors() == []
        multiply(other.clients[1])


def test_a_world_of_one():
    with agmm.world([1], heap=HEAP) as world:
        multiply(world.clients[0])


def test_close_ends_all_and_removes_the_folder(folder):
    world = agmm.world([1, 1, 1], heap=HEAP)
    pids = [world.pid(i) for i in range(3)]
    world.kill(1)
    assert repr(world) == f"<agmm.World([1, 1, 1]): {world.endpoint(0)}, ended, {world.endpoint(2)}>"
    world.close()
    assert repr(world).endswith(": closed, closed, closed>")
    world.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert list(folder.iterdir()) == []
    with pytest.raises(agmm.FailedPrecondition):
        world.start(0)


def test_a_start_that_fails_ends_all_of_them(folder):
    with pytest.raises(agmm.Unavailable, match="a heap of 900 TiB was requested"):
        agmm.world([1, 1], heap="900TiB")
    assert list(folder.iterdir()) == []
