"""Forked and spawned processes, and the end of the interpreter."""

import multiprocessing
import os
import subprocess
import sys
import textwrap

import agmm
import numpy as np
import pytest
from support import LONG, PATIENCE_S, SPEC

ONES = np.ones((50, 50), np.float32)


def test_a_forked_child_gets_a_clear_error(client):
    tensor = client.put("A", ONES, "[M_x, K]")
    client.put("B", ONES, "[K, N_x]")
    mapping = tensor.map()
    job = client.submit(SPEC, "A", "B", "C", **LONG)
    shard = mapping.shards[0].array
    calls = [
        client.world, client.tensors, lambda: client.put("D", ONES, "[M_x, K]"), lambda: client.put("D", ONES.T, "[M_x, K]"),
        tensor.numpy, tensor.delete, lambda: client.fill("D", (5, 5), "[M_x, K]"), lambda: client.run(SPEC, "A", "B", "E"),
        lambda: client.submit(SPEC, "A", "B", "E"), lambda: client.matmul(SPEC, ONES, ONES), lambda: client.map("A"), job.wait,
        job.info, job.cancel, lambda: list(job.watch()), lambda: job.done().result(PATIENCE_S), mapping.commit,
        lambda: agmm.connect(), lambda: shard.sum(), lambda: client.job(job.id), client.jobs,
    ]
    child = os.fork()
    if child == 0:
        # No code of pytest's may run in the child.
        refused = 0
        try:
            for call in calls:
                try:
                    call()
                except agmm.FailedPrecondition as error:
                    refused += "\n" not in str(error)
            client.close()
            mapping.close()
            assert mapping.detached
            del client, tensor, job, mapping, shard, calls, call
        finally:
            os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(calls)
    np.testing.assert_array_equal(shard, ONES[:25])
    mapping.close()
    job.cancel()
    np.testing.assert_array_equal(tensor.numpy(), ONES)


def script(daemon, text, *arguments):
    code = "import agmm, os, sys, threading, time\nimport numpy as np\n" + textwrap.dedent(text)
    return subprocess.run([sys.executable, "-c", code, daemon.endpoint, *arguments], capture_output=True, text=True,
                          timeout=PATIENCE_S)


def test_a_forked_child_may_end_like_any_process(daemon):
    ran = script(daemon, """
        client = agmm.connect(sys.argv[1], session=True)
        client.put("A", np.ones((5, 5), np.float32), "[M_x, K]")
        mapping = client.map("A")
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0
            client.world()
        print("end", flush=True)""")
    assert (ran.stdout, ran.stderr, ran.returncode) == ("end\nend\n", "", 0)


def test_a_child_that_was_forked_before_the_first_connection_may_connect(daemon):
    ran = script(daemon, """
        if child := os.fork():
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        agmm.connect(sys.argv[1]).world()
        print("connected")""")
    assert (ran.stdout, ran.stderr, ran.returncode) == ("connected\n", "", 0)


def test_a_child_that_was_forked_before_the_first_connection_gives_names_of_its_own(daemon):
    ran = script(daemon, """
        if child := os.fork():
            os.waitpid(child, 0)
        with agmm.connect(sys.argv[1], session=True) as client:
            ones = np.ones((5, 5), np.float32)
            print(client.matmul("A[M_x, K] * B[K, N_x] -> C[M, N_x]", ones, ones).name)""")
    assert len(set(ran.stdout.split())) == 2 and ran.stderr == "", (ran.stdout, ran.stderr)


def product_of(endpoint):
    with agmm.connect(endpoint, session=True) as client:
        return agmm.matmul(ONES, ONES, client=client)


def test_spawned_processes_work(daemon):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for result in pool.map(product_of, [daemon.endpoint] * 4):
            np.testing.assert_array_equal(result, ONES @ ONES)


LEFT_OPEN = {
    "a client": "",
    "a job with a future": """
        future = job.done()
        future.add_done_callback(lambda _: None)""",
    "an iterator of events": """
        events = job.watch()
        next(events)""",
    "a mapping": """
        mapping = client.map("mapped", writable=True)
        row = mapping.shards[0].array[0]""",
    "a thread in a wait": """
        start(job.wait)""",
    "a thread in a run": """
        start(lambda: client.run(SPEC, "A", "B", "D", repeat=1_000_000, timeout=600))""",
    "a thread in a get": """
        start(lambda: client.get("C"))""",
    "a thread in a put": """
        start(lambda: client.put("C", np.ones((50, 50), np.float32).T, "[M, N_x]"))""",
    "threads that never end": """
        def poll():
            while True:
                client.world()
        for _ in range(4):
            start(poll)""",
    "threads that take no error for an end": """
        def insist(call):
            while True:
                try:
                    call()
                except BaseException:
                    pass
        for call in [lambda: client.get("mapped"), lambda: agmm.connect(sys.argv[1]), agmm.connect(sys.argv[1]).close,
                     job.info, mapping_of] * 2:
            start(lambda call=call: insist(call))""",
    "a callback that blocks": """
        # The last thing that the interpreter does wakes the callback, when its thread can no longer run Python's code.
        reading, writing = os.pipe()
        called = threading.Event()
        class Waker:
            def __del__(self, write=os.write, writing=writing, sleep=time.sleep):
                write(writing, b"1")
                sleep(0.1)
        waker = Waker()
        def block(_):
            called.set()
            os.read(reading, 1)
        job.done().add_done_callback(block)
        job.cancel()
        assert called.wait(60)""",
    "a callback that makes calls": """
        called = threading.Event()
        def call(_):
            called.set()
            while True:
                client.world()
        sys.stderr = open(os.devnull, "w")  # the client is closed under it
        job.done().add_done_callback(call)
        job.cancel()
        assert called.wait(60)""",
    "calls in the end": """
        import atexit
        def call():
            try:
                client.world()
            except agmm.FailedPrecondition:
                client.close()
        atexit.unregister(agmm._agmm._end)
        atexit.register(call)
        atexit.register(agmm._agmm._end)""",
    "a closed client": """
        client.close()""",
    "an exception": """
        sys.stderr = open(os.devnull, "w")
        raise SystemExit(0)""",
}


@pytest.mark.parametrize("what", LEFT_OPEN)
def test_the_interpreter_ends_with_everything_open(daemon, what):
    ran = script(daemon, """
        SPEC = "A[M_x, K] * B[K, N_x] -> C[M, N_x]"
        client = agmm.connect(sys.argv[1], session=True)
        for name, sharding in (("A", "[M_x, K]"), ("B", "[K, N_x]"), ("mapped", "[M_x, K]")):
            client.put(name, np.ones((50, 50), np.float32), sharding)
        job = client.submit(SPEC, "A", "B", "C", repeat=1_000_000, timeout=600)

        def mapping_of():
            client.map("mapped").close()

        def start(call):
            def run():
                try:
                    call()
                except agmm.Error:
                    pass
            thread = threading.Thread(target=run, daemon=True)
            thread.start()
            while "/agmm/" not in sys._current_frames()[thread.ident].f_code.co_filename:
                time.sleep(0.01)
        """ + LEFT_OPEN[what] + """
        print("end", flush=True)""" * (what != "an exception"))
    assert (ran.stderr, ran.returncode) == ("", 0)
    assert ran.stdout == "end\n" * (what != "an exception")


def test_a_callable_may_have_the_last_reference_to_its_client(daemon):
    ran = script(daemon, """
        def use(name):
            client = agmm.connect(sys.argv[1], session=True)
            ones = np.ones((64, 64), np.float32)
            for array in (ones, np.asfortranarray(ones)):
                client.put(name, array, "[M_x, K]", progress=lambda moved, total, kept=client: None)
                client.get(name, out=array, progress=lambda moved, total, kept=client: None)
        for number in range(100):
            use(str(number))
        print("end", flush=True)""")
    assert (ran.stdout, ran.stderr, ran.returncode) == ("end\n", "", 0)


def test_an_exception_may_have_the_last_reference_to_its_client(daemon):
    ran = script(daemon, """
        def use(name):
            client = agmm.connect(sys.argv[1], session=True)
            def progress(moved, total):
                kept = client
                raise LookupError
            try:
                client.put(name, np.ones((64, 64), np.float32), "[M_x, K]", progress=progress)
            except LookupError:
                pass
        for number in range(100):
            use(str(number))
        print("end", flush=True)""")
    assert (ran.stdout, ran.stderr, ran.returncode) == ("end\n", "", 0)
