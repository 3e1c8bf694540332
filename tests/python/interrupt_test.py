"""Ctrl-C ends each call that waits in the main thread, and cancels the job."""

import os
import signal
import subprocess
import sys
import textwrap

import agmm
import numpy as np
import pytest
from support import A, LARGE, LONG, PATIENCE_S, SPEC, Relay, stopped, wait_until

# A thread sends SIGINT when the main thread is in the call and `holds()`.
PROLOGUE = """
    import faulthandler, os, signal, sys, threading, time
    faulthandler.enable()
    import agmm
    import numpy as np
    SPEC = "A[M_x, K] * B[K, N_x] -> C[M, N_x]"
    LONG = {"repeat": 1_000_000, "timeout": 600}
    client = agmm.connect(sys.argv[1])
    job_id = int(sys.argv[2])

    def interrupt_in(function, holds=lambda: True, signal=signal.SIGINT):
        main = threading.main_thread().ident
        def run():
            while sys._current_frames()[main].f_code.co_name != function or not holds():
                time.sleep(0.01)
            os.kill(os.getpid(), signal)
        threading.Thread(target=run, daemon=True).start()

    def runs():
        return any(job.id > job_id and job.state is agmm.JobState.RUNNING for job in client.jobs(limit=1))
"""


def start(daemon, text, job_id=0):
    script = textwrap.dedent(PROLOGUE) + textwrap.dedent(text)
    return subprocess.Popen([sys.executable, "-c", script, daemon.endpoint, str(job_id)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


def outputs_of(process, patience_s=PATIENCE_S):
    try:
        return process.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler tells where it hangs
        raise AssertionError(process.communicate()[1]) from None


def end_of(process, patience_s=PATIENCE_S):
    """Waits for the end of a script that an interrupt ended."""
    out, error = outputs_of(process, patience_s)
    assert process.returncode == -signal.SIGINT and error.rstrip().endswith("KeyboardInterrupt"), error
    return out


@pytest.fixture
def client(client, daemon):
    """A client without a session: the scripts' clients write the same tensors."""
    with agmm.connect(daemon.endpoint) as client:
        yield client


@pytest.fixture
def busy(client, operands):
    """A job that runs for minutes, so that calls for its tensors wait."""
    job = client.submit(SPEC, "A", "B", "C", **LONG)
    wait_until(lambda: job.info().state is agmm.JobState.RUNNING)
    yield job
    assert job.info().state is agmm.JobState.RUNNING, "the interrupt of a call ended the job of another one"
    job.cancel()


JOBS = {
    "run": """
        interrupt_in("_with_room", runs)
        client.run(SPEC, "A", "B", "C", **LONG)""",
    "wait": """
        interrupt_in("wait", runs)
        client.submit(SPEC, "A", "B", "C", **LONG).wait()""",
    "watch": """
        interrupt_in("_events", runs)
        for event in client.submit(SPEC, "A", "B", "C", **LONG).watch(after_event=2):  # those after RUNNING
            print(event.state.name)""",
    "matmul": """
        interrupt_in("_with_room", runs)
        client.matmul(SPEC, "A", "B", out="C", **LONG)""",
}


@pytest.mark.parametrize("call", JOBS)
def test_an_interrupt_cancels_the_job(client, operands, daemon, call):
    end_of(start(daemon, JOBS[call]))
    job = client.jobs(limit=1)[0]
    wait_until(lambda: client.job(job.id).info().state is agmm.JobState.CANCELLED)
    client.run(SPEC, "A", "B", "C")


CALLS = {
    "put": """
        interrupt_in("_with_room")
        client.put("C", np.ones((50, 40), np.float32), "[M, N_x]")""",
    "put of another order": """
        interrupt_in("_with_room")
        client.put("C", np.ones((40, 50), np.float32).T, "[M, N_x]")""",
    "get": """
        interrupt_in("_get")
        client.get("C")""",
    "map": """
        interrupt_in("_map")
        client.map("C")""",
    "fill": """
        interrupt_in("_with_room")
        client.fill("C", (50, 40), "[M, N_x]", mesh="x=2")""",
}


@pytest.mark.parametrize("call", CALLS)
def test_an_interrupt_ends_a_call_that_waits_for_a_job(busy, daemon, call):
    end_of(start(daemon, CALLS[call], busy.id))


def test_an_interrupted_map_leaves_the_contents(client, operands, daemon):
    job = client.submit(SPEC, "A", "B", "C", **LONG)
    wait_until(lambda: job.info().state is agmm.JobState.RUNNING)
    process = start(daemon, """
        interrupt_in("_map")
        try:
            client.map("A", writable=True)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        sys.stdin.readline()""")
    assert process.stdout.readline() == "interrupted\n"
    job.cancel()
    # A map that still waited would have its turn before this get.
    np.testing.assert_array_equal(client.get("A"), A)
    out, error = outputs_of(process)
    assert process.returncode == 0, error


@pytest.mark.parametrize("has_writer", [False, True])
def test_an_interrupt_ends_the_load_of_a_silent_pipe(client, daemon, tmp_path, has_writer):
    path = tmp_path / "silent.safetensors"
    os.mkfifo(path)
    process = start(daemon, f"""
        interrupt_in("_with_room")
        writer = os.open({str(path)!r}, os.O_RDWR) if {has_writer} else None
        client.load({str(path)!r}, {{"*": "[M, N]"}})""")
    end_of(process)


def test_an_interrupt_ends_a_put_midway(client, daemon):
    process = start(daemon, """
        interrupted = threading.Event()
        def stop(*_):
            interrupted.set()
            raise KeyboardInterrupt
        signal.signal(signal.SIGINT, stop)
        def progress(moved, total):
            assert moved < total
            if not interrupted.is_set():  # else the call ends soon, or moves another piece before
                print("moved", flush=True)
            assert interrupted.wait(60)
        client.put("D", np.ones((4096, 4096), np.float32), "[M_x, K]", progress=progress)""")
    assert process.stdout.readline() == "moved\n"
    process.send_signal(signal.SIGINT)
    assert end_of(process) == ""
    with pytest.raises(agmm.NotFound):
        client.tensor("D")


def test_a_handler_may_raise_anything(busy, daemon):
    process = start(daemon, """
        def stop(*_):
            raise LookupError("by the handler")
        signal.signal(signal.SIGALRM, stop)
        interrupt_in("_get", signal=signal.SIGALRM)
        try:
            client.get("C")
        except LookupError as error:
            print(error)
        client.world()""", busy.id)
    out, error = outputs_of(process)
    assert (out, process.returncode) == ("by the handler\n", 0), error


def test_a_handler_that_returns_does_not_end_the_call(client, operands, daemon):
    process = start(daemon, """
        handled = threading.Event()
        signal.signal(signal.SIGALRM, lambda *_: handled.set())
        job = client.submit(SPEC, "A", "B", "C", **LONG)
        interrupt_in("wait", runs, signal=signal.SIGALRM)
        threading.Thread(target=lambda: (handled.wait(60), job.cancel())).start()
        try:
            job.wait()
        except agmm.Cancelled as error:
            print(handled.is_set())""")
    out, error = outputs_of(process)
    assert (out, process.returncode) == ("True\n", 0), error


BROKEN_AFTER_S = 25  # of silence, a connection counts as broken, which ends all waits

# A thread sends SIGINT when the job runs and the test says so.
INTERRUPT_WHEN_TOLD = """
def interrupt():
    while not runs():
        time.sleep(0.01)
    print("runs", flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
"""


@pytest.mark.parametrize("call", [
    """client.run(SPEC, "A", "B", "C", **LONG)""",
    """client.matmul(SPEC, "A", "B", out="C", **LONG)""",
    """client.submit(SPEC, "A", "B", "C", **LONG).wait()""",
])
def test_the_cancellation_of_a_job_does_not_wait_for_a_daemon_that_hangs(call):
    local = agmm.local(devices=1, heap="16MiB", threads=1)
    with local as other:
        for operand, matrix in LARGE.items():
            other.fill(operand, *matrix)
        process = start(local, INTERRUPT_WHEN_TOLD + call)
        assert process.stdout.readline() == "runs\n"
        with stopped(local):
            process.stdin.write("\n")
            process.stdin.flush()
            end_of(process, BROKEN_AFTER_S - 5)


def start_submit(relay, text):
    """Starts a script that submits a job, of which the daemon's answer waits at the relay."""
    connect = """
client.world()
print("connected", flush=True)
sys.stdin.readline()
"""
    process = start(relay, connect + textwrap.dedent(text))
    assert process.stdout.readline() == "connected\n"
    relay.answers.clear()
    process.stdin.write("\n")
    process.stdin.flush()
    return process


def test_an_interrupt_of_a_submit_leaves_no_job(tmp_path):
    local = agmm.local(devices=1, heap="16MiB", threads=1)
    with local as other, Relay(local, tmp_path) as relay:
        for operand, matrix in LARGE.items():
            other.fill(operand, *matrix)
        process = start_submit(relay, """
            client.submit(SPEC, "A", "B", "C", **LONG)""")
        wait_until(lambda: len(other.jobs()) == 1)
        process.send_signal(signal.SIGINT)
        relay.answers.set()
        end_of(process)
        wait_until(lambda: [job.state for job in other.jobs()] == [agmm.JobState.CANCELLED])


def test_an_interrupt_ends_a_submit_to_a_daemon_that_hangs(tmp_path):
    local = agmm.local(devices=1, heap="16MiB", threads=1)
    with local as other, Relay(local, tmp_path) as relay:
        for operand, matrix in LARGE.items():
            other.fill(operand, *matrix)
        process = start_submit(relay, """
            try:
                client.submit(SPEC, "A", "B", "C", **LONG)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            sys.stdin.readline()""")
        wait_until(lambda: len(other.jobs()) == 1)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        relay.answers.set()
        # The client is still open, and cancels the job once the daemon answers.
        wait_until(lambda: [job.state for job in other.jobs()] == [agmm.JobState.CANCELLED])
        outputs_of(process)


@pytest.mark.parametrize("call", [
    """interrupt_in("_with_room"); client.put("A", np.ones((50, 30), np.float32), "[M_x, K]")""",
    """interrupt_in("_get"); client.get(tensor)""",
    """interrupt_in("world"); client.world()""",
])
def test_an_interrupt_ends_a_call_to_a_daemon_that_hangs(call):
    local = agmm.local(devices=1, heap="16MiB", threads=1)
    with local:
        process = start(local, """
            tensor = client.fill("A", (50, 30), "[M_x, K]")
            print("filled", flush=True)
            sys.stdin.readline()
            """ + call)
        assert process.stdout.readline() == "filled\n"
        with stopped(local):
            process.stdin.write("\n")
            end_of(process)


def test_an_interrupt_ends_the_close_of_a_mapping_after_an_interrupted_commit():
    local = agmm.local(devices=1, heap="16MiB", threads=1)
    with local as other:
        other.fill("A", (50, 30), "[M_x, K]")
        process = start(local, """
            mapping = client.map("A", writable=True)
            print("mapped", flush=True)
            sys.stdin.readline()
            interrupt_in("commit")
            with mapping:
                try:
                    mapping.commit(timeout=600)
                finally:
                    print("left the commit", flush=True)
                    interrupt_in("close")""")
        assert process.stdout.readline() == "mapped\n"
        with stopped(local):
            process.stdin.write("\n")
            process.stdin.flush()
            assert end_of(process, BROKEN_AFTER_S - 5) == "left the commit\n"
