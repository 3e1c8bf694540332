"""One client in 32 threads at once."""

import concurrent.futures
import pathlib
import re
import sys
import threading
import time

import agmm
import numpy as np
from support import LONG, PATIENCE_S, SPEC, integers, wait_until

THREADS = 32
ROUNDS = 8


def in_threads(call):
    """Returns call(0), call(1), ..., each in a thread of its own, which begin together."""
    barrier = threading.Barrier(THREADS)

    def begin(thread):
        barrier.wait(PATIENCE_S)
        return call(thread)

    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin, range(THREADS)))


def test_products_are_exact_and_none_is_lost(client):
    def multiply(thread):
        ids = []
        for round in range(ROUNDS):
            a, b = integers(20 + thread, 30, thread), integers(30, 10 + round, round)
            names = [f"{operand}{thread}.{round}" for operand in "ABC"]
            client.put(names[0], a if round % 2 else np.asfortranarray(a), "[M_x, K]")
            client.put(names[1], b, "[K, N_x]")
            if round % 3 == 0:
                ids.append(client.run(SPEC, *names).id)
            elif round % 3 == 1:
                ids.append(client.submit(SPEC, *names).wait().id)
            else:
                ids.append(client.submit(SPEC, *names).done().result(PATIENCE_S).id)
            np.testing.assert_array_equal(client.get(names[2]), a @ b)
            with client.map(names[2]) as mapping:
                for shard in mapping.shards:
                    np.testing.assert_array_equal(shard.array, (a @ b)[shard.rows, shard.cols])
            for name in names:
                client.delete(name)
        return ids

    ids = sum(in_threads(multiply), [])
    assert len(set(ids)) == THREADS * ROUNDS
    states = {job.id: job.state for job in client.jobs(limit=10 * THREADS * ROUNDS)}
    assert all(states[id] is agmm.JobState.SUCCEEDED for id in ids)
    assert client.tensors() == []


def test_threads_share_tensors(client):
    a, b = integers(50, 30, 1), integers(30, 40, 2)
    client.put("A", a, "[M_x, K]")
    client.put("B", b, "[K, N_x]")
    results = in_threads(lambda thread: (client.matmul(SPEC, "A", "B").numpy(), list(
        event.state for event in client.submit(SPEC, "A", "B", f"C{thread}").watch())[-1]))
    for product, state in results:
        np.testing.assert_array_equal(product, a @ b)
        assert state is agmm.JobState.SUCCEEDED


def test_a_close_ends_the_calls_of_all_threads(daemon, client):
    client.put("A", np.ones((50, 30), np.float32), "[M_x, K]")
    client.put("B", np.ones((30, 40), np.float32), "[K, N_x]")
    job = client.submit(SPEC, "A", "B", "C", **LONG)
    shared = agmm.connect(daemon.endpoint)
    calls = [lambda: shared.job(job.id).wait(), lambda: shared.get("C"), lambda: shared.get("C", out=np.ones((40, 50), np.float32).T),
             lambda: list(shared.job(job.id).watch()), lambda: [shared.world() for _ in range(10**6)]]
    calling = threading.Semaphore(0)

    def call(thread):
        calling.release()
        try:
            calls[thread % len(calls)]()
        except agmm.Error as error:
            return error

    def close():
        for _ in range(THREADS):
            assert calling.acquire(timeout=PATIENCE_S)
        shared.close()

    closer = threading.Thread(target=close)
    closer.start()
    errors = in_threads(call)
    closer.join(PATIENCE_S)
    assert {type(error) for error in errors} <= {agmm.Cancelled, agmm.FailedPrecondition}
    job.cancel()


def test_a_thread_that_waits_does_not_wake_up(client):
    client.put("A", np.ones((50, 30), np.float32), "[M_x, K]")
    client.put("B", np.ones((30, 40), np.float32), "[K, N_x]")
    job = client.submit(SPEC, "A", "B", "C", **LONG)

    def wait():
        try:
            job.wait()
        except agmm.Cancelled:
            pass

    def sleeps():
        status = pathlib.Path(f"/proc/self/task/{thread.native_id}/status").read_text()
        return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.MULTILINE)[1])

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: sys._current_frames()[thread.ident].f_code.co_filename.endswith("/agmm/job.py"))
    before = sleeps()
    time.sleep(1)  # 50 of the main thread's looks at its signals
    count = sleeps() - before
    job.cancel()
    thread.join(PATIENCE_S)
    assert count < 10
