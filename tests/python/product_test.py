"""Products leave no tensors of their own, however they end."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap

import agmm
import agmm.aio
import numpy as np
import pytest
from support import A, B, LONG, PATIENCE_S, SPEC, stopped, wait_until

pytestmark = pytest.mark.usefixtures("operands")

END_S = 25  # less than 15 clients would take that each wait 2 s


def test_a_result_without_a_name_belongs_to_its_handles(client):
    for _ in range(3):
        client.matmul(SPEC, A, B).numpy()
    assert len(client.tensors()) == 3, "results are left"
    c = client.matmul(SPEC, A, B)
    for _ in range(3):
        c = client.matmul(SPEC, A, B, out=c)
    mapping = c.map()
    named = client.matmul(SPEC, A, B, out="D")
    del c, named
    client.matmul(SPEC, A, B)
    np.testing.assert_array_equal(mapping.tensor.numpy(), A @ B)
    mapping.close()
    with mapping.tensor.map(writable=True) as writable:
        committed = writable.commit()
    del mapping, writable
    client.matmul(SPEC, A, B)
    assert committed.numpy().shape == (50, 40)
    del committed
    client.matmul(SPEC, A, B, out="D")
    assert {tensor.name for tensor in client.tensors()} == {"A", "B", "D"}


def test_a_result_does_not_take_a_new_tensor_of_its_name_along(client):
    c = client.matmul(SPEC, A, B)
    client.put(c.name, A, "[M_x, K]")
    name = c.name
    del c
    client.matmul(SPEC, A, B, out="D")
    assert client.tensor(name).shape == A.shape


def test_a_close_deletes_dropped_results(client, daemon):
    with agmm.connect(daemon.endpoint) as other:
        other.matmul(SPEC, A, B)
    assert {tensor.name for tensor in client.tensors()} == {"A", "B"}


def test_a_close_deletes_results_in_use(client, daemon):
    with agmm.connect(daemon.endpoint) as other:
        c = other.matmul(SPEC, A, B)
        with c.map() as mapping:
            kept = mapping.tensor
        named = other.matmul(SPEC, A, B, out="C")
    assert names(client) == {"A", "B", "C"}
    with agmm.connect(daemon.endpoint) as other:  # the results' ends may not take others along
        d = other.matmul(SPEC, A, B)
        del c, kept, named
        np.testing.assert_array_equal(d.numpy(), A @ B)
    assert names(client) == {"A", "B", "C"}


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_a_client_that_is_dropped_deletes_its_results(client, daemon, in_a_cycle):
    def use():
        result = agmm.connect(daemon.endpoint).matmul(SPEC, A, B)
        assert names(client) == {"A", "B", result.name}
        if in_a_cycle:
            result.job = [result]

    use()
    gc.collect()
    wait_until(lambda: names(client) == {"A", "B"})


@pytest.mark.parametrize("is_deleted", [False, True])
def test_an_interrupted_deletion_is_made_later(client, daemon, monkeypatch, is_deleted):
    def interrupt(self, tensor, *, timeout=None):
        if is_deleted:
            delete(self, tensor, timeout=timeout)
        raise KeyboardInterrupt

    delete = agmm.Client.delete
    with agmm.connect(daemon.endpoint) as other:
        other.matmul(SPEC, A, B)
        with monkeypatch.context() as patch:
            patch.setattr(agmm.Client, "delete", interrupt)
            with pytest.raises(KeyboardInterrupt):
                other.matmul(SPEC, A, B, out="C")
        other.matmul(SPEC, A, B, out="C")
        assert names(client) == {"A", "B", "C"}


def test_a_result_that_cannot_be_deleted_now_is_deleted_later(client, monkeypatch):
    def refuse(self, tensor, *, timeout=None):
        raise agmm.Unavailable("not now")

    with monkeypatch.context() as patch:
        patch.setattr(agmm.Client, "delete", refuse)
        c = client.matmul(SPEC, A, B)
        np.testing.assert_array_equal(c.numpy(), A @ B)
    assert len(client.tensors()) == 5
    client.matmul(SPEC, "A", "B", out=c)
    assert {tensor.name for tensor in client.tensors()} == {"A", "B", c.name}


def test_a_product_in_one_line_survives_a_restart_of_the_daemon(monkeypatch):
    monkeypatch.setattr(agmm.shared, "_client", None)
    with agmm.world([1], heap="16MiB") as world:
        monkeypatch.setenv("AGMM_ENDPOINT", world.clients[0]._endpoint)
        agmm.matmul(A, B)
        assert agmm.shared._client._session
        world.kill(0)
        world.start(0)
        world.wait_ready(PATIENCE_S)
        np.testing.assert_array_equal(agmm.matmul(A, B), A @ B)


@pytest.fixture
def own_client(daemon, monkeypatch):
    """The client of agmm.matmul."""
    monkeypatch.setattr(agmm.shared, "_client", None)
    monkeypatch.setenv("AGMM_ENDPOINT", daemon.endpoint)
    agmm.matmul(A, B)
    yield agmm.shared._client
    agmm.shared._client.close()


def test_an_error_of_the_operands_keeps_the_session(client, own_client):
    own_client.create("empty", A.shape, "[M_x, K]")
    with pytest.raises(agmm.FailedPrecondition, match="empty"):
        agmm.matmul("empty", B)
    with client.put("whole", A, "[M, K]", ranks=[0]).map() as mapping:
        array = mapping.array
    with pytest.raises(agmm.FailedPrecondition, match="tensor 'whole' is detached"):
        agmm.matmul(array, B)
    assert agmm.shared._client is own_client and not own_client.closed
    assert own_client.tensor("empty").of_session


def test_a_session_that_has_ended_is_opened_again(own_client, monkeypatch):
    matmul = agmm.Client.matmul

    def close_first(self, *arguments, **options):
        if self is own_client:
            self.close()
        return matmul(self, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(agmm.Client, "matmul", close_first)
        np.testing.assert_array_equal(agmm.matmul(A, B), A @ B)
    assert agmm.shared._client is not own_client


def names(client):
    return {tensor.name for tensor in client.tensors()}


def start(daemon, text):
    """Starts a script, whose main thread may wait for `runs()`."""
    script = textwrap.dedent("""
        import os, signal, sys, threading, time
        import agmm
        import numpy as np
        SPEC = "A[M_x, K] * B[K, N_x] -> C[M, N_x]"
        a = np.ones((50, 50), np.float32)
        client = agmm.connect(sys.argv[1])
        last_id = client.jobs(limit=1)[0].id if client.jobs(limit=1) else 0

        def runs():
            return any(job.id > last_id and job.state is agmm.JobState.RUNNING for job in client.jobs(limit=1))

        def once_it_runs(call):
            def watch():
                while not runs():
                    time.sleep(0.01)
                call()
            threading.Thread(target=watch, daemon=True).start()
        """) + textwrap.dedent(text)
    return subprocess.Popen([sys.executable, "-c", script, daemon.endpoint], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env={**os.environ, "AGMM_ENDPOINT": daemon.endpoint})


def test_an_interrupted_product_leaves_nothing(client, daemon):
    process = start(daemon, """
        once_it_runs(lambda: os.kill(os.getpid(), signal.SIGINT))
        try:
            client.matmul(SPEC, a, a, repeat=1_000_000, timeout=600)
        except KeyboardInterrupt:
            print([tensor.name for tensor in client.tensors() if not tensor.of_session])""")
    out, error = process.communicate(timeout=PATIENCE_S)
    assert (out, process.returncode) == ("[]\n", 0), error


def test_interrupts_at_any_moment_leave_nothing(client, daemon):
    process = start(daemon, """
        import random
        seed = time.time_ns()
        print("seed", seed, file=sys.stderr)
        numbers = random.Random(seed)
        count, wanted, inside = 0, 50, False
        def stop(*_):
            global inside
            if inside:
                inside = False  # no interrupt of the handling of an interrupt
                raise KeyboardInterrupt
        signal.signal(signal.SIGINT, stop)
        def interrupt():
            while count < wanted:
                time.sleep(numbers.uniform(0.001, 0.02))
                os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        while count < wanted:
            try:
                inside = True
                client.matmul(SPEC, a, a).numpy()
                inside = False
            except KeyboardInterrupt:
                count += 1
        client.matmul(SPEC, a, a, out="Y")
        print([tensor.name for tensor in client.tensors() if not tensor.of_session])""")
    out, error = process.communicate(timeout=PATIENCE_S)
    assert (out, process.returncode) == ("['Y']\n", 0), error


@pytest.mark.parametrize("text", [
    "c = client.matmul(SPEC, a, a)",
    "client.matmul(SPEC, a, a)",
    """
        c = client.matmul(SPEC, a, a)
        def fail():
            raise LookupError
        try:
            fail()
        finally:
            sys.stderr = open(os.devnull, "w")""",
    """
        c = client.matmul(SPEC, a, a)
        if child := os.fork():
            assert os.waitpid(child, 0)[1] == 0
            assert c.numpy().shape == a.shape""",
    """
        import agmm.aio, asyncio
        async def main():
            global asynchronous, c
            asynchronous = await agmm.aio.connect(sys.argv[1])
            c = await asynchronous.matmul(SPEC, a, a)
        asyncio.run(main())""",
    """
        def use():
            agmm.connect(sys.argv[1]).matmul(SPEC, a, a)
        use()""",
], ids=["a result in use", "a dropped result", "an exception", "a forked child", "asyncio", "a dropped client"])
def test_the_end_of_a_program_deletes_its_results(client, daemon, text):
    process = start(daemon, text)
    _, error = process.communicate(timeout=PATIENCE_S)
    assert error == ""
    assert names(client) == {"A", "B"}


def test_the_end_of_a_program_deletes_its_results_before_its_daemons_end(daemon):
    process = start(daemon, """
        world = agmm.world([1], heap="16MiB")
        c = world.__enter__().clients[0].matmul(SPEC, a, a)
        delete = agmm.Client.delete
        def tell(*arguments, **options):
            delete(*arguments, **options)
            print("deleted")
        agmm.Client.delete = tell""")
    assert process.communicate(timeout=PATIENCE_S) == ("deleted\n", "")


def test_a_daemon_that_hangs_does_not_hold_up_the_end_of_a_program():
    local = agmm.local(devices=1, heap="16MiB", threads=1)
    with local:
        process = start(local, """
            clients = [agmm.connect(sys.argv[1], call_timeout=600) for _ in range(15)]
            results = [client.matmul(SPEC, a, a) for client in clients]
            print("ready", flush=True)
            sys.stdin.readline()""")
        assert process.stdout.readline() == "ready\n"
        with stopped(local):
            assert process.communicate("\n", timeout=END_S) == ("", "")


def test_a_killed_process_leaves_nothing(client, daemon):
    process = start(daemon, """
        once_it_runs(lambda: os.kill(os.getpid(), signal.SIGKILL))
        agmm.matmul(a, a, repeat=1_000_000, timeout=600)""")
    _, error = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGKILL, error
    wait_until(lambda: names(client) == {"A", "B"} and client.jobs(limit=1)[0].state is agmm.JobState.CANCELLED)


def test_a_put_that_takes_effect_although_it_raises_leaves_nothing(client, monkeypatch):
    put = agmm.Client.put

    def late(self, name, *arguments, **options):
        put(self, name, *arguments, **options)
        raise agmm.DeadlineExceeded("too late")

    with monkeypatch.context() as patch:
        patch.setattr(agmm.Client, "put", late)
        with pytest.raises(agmm.DeadlineExceeded, match="too late"):
            client.matmul(SPEC, A, B)
    assert names(client) == {"A", "B"}


def test_what_appears_after_the_failure_is_deleted_later(client, daemon, monkeypatch):
    late = []

    def refuse(self, name, array, sharding, **options):
        late.append((name, array, sharding))
        raise agmm.DeadlineExceeded("too early")

    with monkeypatch.context() as patch:
        patch.setattr(agmm.Client, "put", refuse)
        with pytest.raises(agmm.DeadlineExceeded, match="too early"):
            client.matmul(SPEC, A, B)
    with agmm.connect(daemon.endpoint) as other:  # the client's own put would delete it first
        other.put(*late[0])
    client.matmul(SPEC, "A", "B", out="C")
    assert names(client) == {"A", "B", "C"}


def test_products_of_asyncio_leave_nothing(client, daemon):
    async def main():
        async with agmm.aio.connect(daemon.endpoint) as other:
            c = await other.matmul(SPEC, A, B)
            for _ in range(2):
                c = await other.matmul(SPEC, A, B, out=c)
            np.testing.assert_array_equal(await c.numpy(), A @ B)
            with pytest.raises(agmm.DeadlineExceeded):
                await other.matmul(SPEC, A, B, repeat=1_000_000, timeout=0.5)
            product = asyncio.ensure_future(other.matmul(SPEC, A, B, **LONG))
            while (await other.jobs(1))[0].state is not agmm.JobState.RUNNING:
                await asyncio.sleep(0.01)
            product.cancel()
            with pytest.raises(asyncio.CancelledError):
                await product
            del product
            assert names(client) == {"A", "B", c.name}
            del c
            await other.matmul(SPEC, "A", "B", out="C")
            assert names(client) == {"A", "B", "C"}
            await other.matmul(SPEC, A, B)
            in_use = await other.matmul(SPEC, A, B)
            assert in_use.name in names(client)
        assert names(client) == {"A", "B", "C"}

    asyncio.run(main())
