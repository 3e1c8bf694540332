"""agmm.local: a private daemon that ends with its block, its process and its interpreter."""

import asyncio
import gc
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading

import agmm
import numpy as np
import pytest
from agmm import errors, programs
from support import PATIENCE_S, Relay, wait_until

HEAP = "16MiB"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder for temporary files, so that each test sees its own alone."""
    path = tmp_path / "t"
    path.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(path))
    monkeypatch.setenv("TMPDIR", str(path))
    return path


def runs(pid: int) -> bool:
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def pid_of(socket: str) -> int:
    return int(pathlib.Path(socket + ".lock").read_text())


def start_script(text: str) -> subprocess.Popen:
    """Starts Python code that prints the socket of its daemon, and perhaps more."""
    script = "import agmm, os, signal, sys, threading, time\n" + textwrap.dedent(text)
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_product_of_a_users_arrays():
    a = np.arange(24, dtype=np.float32).reshape(4, 6)
    b = np.arange(48, dtype=np.float32).reshape(6, 8)
    with agmm.local(devices=4, heap=HEAP) as client:
        client.put("A", a, "[M_x, K]")
        client.put("B", b, "[K, N_x]")
        c = client.matmul("A[M_x, K] * B[K, N_x] -> C[M, N_x]", "A", "B", out="C")
        assert np.array_equal(c.numpy(), a @ b)


def test_the_block_ends_the_daemon_and_removes_its_folder(folder):
    with agmm.local(1, heap=HEAP) as client:
        (own,) = folder.iterdir()
        assert own.stat().st_mode & 0o777 == 0o700
        pid = pid_of(str(own / "agmmd.sock"))
        assert runs(pid) and client.world().ready
    assert not runs(pid)
    assert list(folder.iterdir()) == []


def test_an_exception_ends_it_too(folder):
    with pytest.raises(KeyError), agmm.local(1, heap=HEAP):
        pid = pid_of(str(next(folder.iterdir()) / "agmmd.sock"))
        raise KeyError("of the block")
    assert not runs(pid) and list(folder.iterdir()) == []


def test_two_at_once_do_not_meet():
    with agmm.local(1, heap=HEAP) as one, agmm.local(2, heap=HEAP) as other:
        one.put("A", np.zeros((2, 2), np.float32), "[M, K]")
        assert [len(client.world().devices) for client in (one, other)] == [1, 2]
        with pytest.raises(agmm.NotFound):
            other.tensor("A")


def test_threads_start_and_end_their_own():
    found = []

    def use():
        try:
            with agmm.local(1, heap=HEAP) as client:
                assert client.world().ready
        except BaseException as error:
            found.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert found == []


def test_the_daemon_survives_the_thread_that_started_it():
    daemon = agmm.local(1, heap=HEAP)
    thread = threading.Thread(target=daemon.start)
    thread.start()
    thread.join(PATIENCE_S)
    with agmm.connect(daemon.endpoint) as client:
        assert client.world().ready
    daemon.close()


def test_it_works_inside_a_running_loop():
    async def cell():
        with agmm.local(1, heap=HEAP) as client:
            return client.world().ready

    assert asyncio.run(cell())


def test_start_and_close_serve_notebooks(folder):
    daemon = agmm.local(1, heap=HEAP)
    with pytest.raises(agmm.FailedPrecondition):
        daemon.endpoint
    client = daemon.start()
    assert client.world().ready and "listening on unix:" in daemon.log
    assert client.endpoint == daemon.endpoint
    with pytest.raises(agmm.FailedPrecondition, match="runs already"):
        daemon.start()
    assert repr(daemon) == f"<agmm.local(devices=1): {daemon.endpoint}>"
    daemon.close()
    daemon.close()
    assert repr(daemon) == "<agmm.local(devices=1): not running>"
    assert list(folder.iterdir()) == []
    with pytest.raises(agmm.FailedPrecondition, match="was closed; call start()"):
        daemon.endpoint
    assert "stopping" in daemon.log.splitlines()[-1]
    with pytest.raises(agmm.FailedPrecondition, match="this client is closed; its daemon has ended, too: start\\(\\) of its agmm.local returns another client"):
        client.world()
    assert daemon.start().world().ready
    daemon.close()


def test_a_client_keeps_its_daemon():
    client = agmm.local(1, heap=HEAP).start()
    gc.collect()
    assert client.world().ready


KEEPERS = {
    "a tensor": (lambda client: client.tensor("A"), lambda tensor: tensor.numpy()),
    "a mapping": (lambda client: client.map("A"), lambda mapping: mapping.read()),
    "a job": (lambda client: client.submit("A[M, K] -> B[M, K]", "A", "B"), lambda job: job.wait()),
}


@pytest.mark.parametrize("kind", KEEPERS)
def test_a_daemon_ends_with_the_last_thing_of_its_client(folder, kind):
    make, use = KEEPERS[kind]
    daemon = agmm.local(1, heap=HEAP)
    client = daemon.start()
    client.put("A", np.ones((2, 2), np.float32), "[M, K]")
    kept = make(client)
    daemon = agmm.local(1, heap=HEAP)  # as in a cell that runs again
    client = daemon.start()
    gc.collect()
    use(kept)
    assert len(daemons_in(folder)) == 2
    del kept
    wait_until(lambda: len(daemons_in(folder)) == 1)
    assert client.world().ready
    daemon.close()


def test_a_cell_that_runs_again_ends_the_daemon_of_its_last_run(folder):
    for _ in range(3):
        daemon = agmm.local(1, heap=HEAP)
        client = daemon.start()
        assert client.world().ready
    wait_until(lambda: len(daemons_in(folder)) == 1)
    del daemon, client
    wait_until(lambda: daemons_in(folder) == [] and list(folder.iterdir()) == [])


def test_a_dropped_daemon_holds_up_no_collection(folder):
    daemon = agmm.local(1, heap=HEAP)
    daemon.start()
    pid = pid_of(daemon.endpoint)
    os.kill(pid, signal.SIGSTOP)
    daemon.cycle = daemon
    del daemon
    gc.collect()
    assert runs(pid), "the collection has waited, and then killed it"
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not runs(pid))


def test_a_daemon_that_has_ended_is_started_again(folder):
    daemon = agmm.local(1, heap=HEAP)
    client = daemon.start()
    os.kill(pid_of(daemon.endpoint), signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(agmm.Unavailable, match=r"was lost; its tensors and jobs are gone: call start\(\) of its agmm.local again$"):
            client.world()
    wait_until(lambda: "not running" in repr(daemon))
    again = daemon.start()
    assert again.world().ready and again.endpoint == daemon.endpoint != client.endpoint
    with pytest.raises(agmm.FailedPrecondition, match=r"start\(\) of its agmm.local returns another client"):
        client.world()
    daemon.close()
    assert list(folder.iterdir()) == []


def test_a_call_of_a_client_says_how_to_get_one():
    with pytest.raises(AttributeError, match=r"agmm.local has no 'matmul', but its client has: `client = agmm.local\(\).start\(\)`"):
        agmm.local(1).matmul
    with pytest.raises(AttributeError, match="agmm.local has no 'nothing'$"):
        agmm.local(1).nothing


def test_a_call_that_a_stopping_daemon_cancels_says_that_it_is_lost():
    daemon = agmm.local(1, heap=HEAP)
    daemon.start()
    lost = errors.from_status(1, f"the call to unix:{daemon.endpoint} failed: it was cancelled; see the daemon's log", "")
    assert isinstance(lost, agmm.Unavailable) and str(lost).endswith("failed: it was cancelled; its tensors and jobs are gone: "
                                                                    "call start() of its agmm.local again")
    other = errors.from_status(1, "the call to unix:/other failed: it was cancelled; see the daemon's log", "")
    assert isinstance(other, agmm.Cancelled) and str(other).endswith("see the daemon's log")
    daemon.close()


@pytest.mark.parametrize("length", [60, 67, 68, 69, 74, 75, 79, 80, 140])
@pytest.mark.parametrize("letter", ["x", "\u00e9"])
def test_a_long_path_for_temporary_files_is_no_obstacle(monkeypatch, length, letter):
    """The daemon's sockets have longer paths, which are limited to 107 bytes."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix=letter * ((length - 13) // len(letter.encode()))) as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)
        with agmm.local(1, heap=HEAP) as client:
            assert client.fill("A", (4, 8), "[M, K]", kind="constant", value=1).map().read().all()
            assert client.endpoint.startswith(folder) == (len(os.fsencode(folder)) <= 68)


@pytest.mark.parametrize("given", ["./agmmd.sock", "unix:agmmd.sock", "unix://../{parent}/agmmd.sock", "$AGMM_ENDPOINT"])
def test_an_endpoint_works_in_any_folder(folder, monkeypatch, given):
    monkeypatch.setattr("tempfile.tempdir", ".")
    monkeypatch.chdir(folder)
    daemon = agmm.local(1, heap=HEAP)
    daemon.start()
    own = os.path.dirname(daemon.endpoint)
    monkeypatch.chdir(own)
    if given.startswith("$"):
        monkeypatch.setenv("AGMM_ENDPOINT", "unix:agmmd.sock")
    client = agmm.connect(None if given.startswith("$") else given.format(parent=os.path.basename(own)))
    os.symlink("agmmd.sock", "current.sock")
    linked = agmm.connect("./current.sock").endpoint
    assert linked.endswith("current.sock")
    monkeypatch.chdir("/")
    for endpoint in (client.endpoint, daemon.endpoint, linked):
        assert agmm.connect(endpoint).world().ready
    daemon.close()


def test_an_endpoint_whose_absolute_path_is_too_long_stays_as_it_is(folder, monkeypatch):
    long = folder / ("x" * 100)
    long.mkdir()
    monkeypatch.chdir(long)
    daemon = agmm.local(1, heap=HEAP)
    daemon.start()
    with Relay(daemon, pathlib.Path(".")), agmm.connect("./relay.sock") as client:
        assert client.endpoint == "./relay.sock" and client.world().ready
    daemon.close()


def test_the_log_goes_to_the_users_file(tmp_path):
    path = tmp_path / "agmmd.log"
    path.write_text("before\n")
    with agmm.local(1, heap=HEAP, log=path):
        pass
    lines = path.read_text().splitlines()
    assert lines[0] == "before" and any("world complete" in line for line in lines)


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"heap": "12Mob"}, agmm.InvalidArgument, 'heap: "12Mob" is not a size'),
        ({"heap": '1GiB" } device {'}, agmm.InvalidArgument, "is not a size"),
        ({"heap": 100}, agmm.InvalidArgument, "100 bytes are less than a page"),
        ({"heap": "1 MB and more"}, agmm.InvalidArgument, '"1 MB and more" is not a size'),
        ({"heap": True}, agmm.InvalidArgument, "heap is True"),
        ({"heap": None}, agmm.InvalidArgument, "heap is None"),
        ({"heap": "900TiB"}, agmm.Unavailable, "a heap of 900 TiB was requested"),
        ({"devices": 0}, agmm.InvalidArgument, "devices is 0"),
        ({"devices": "2"}, agmm.InvalidArgument, "devices is '2'"),
        ({"devices": True}, agmm.InvalidArgument, "devices is True, a bool; give an int"),
        ({"devices": 2.0}, agmm.InvalidArgument, "devices is 2.0, a float; give an int"),
        ({"devices": 5000}, agmm.InvalidArgument, r"5000 is outside \[1, 1024\]"),
        ({"threads": 0}, agmm.InvalidArgument, "threads is 0"),
        ({"log": "/no/such/folder/log"}, FileNotFoundError, "/no/such/folder/log"),
    ],
)
def test_a_start_that_fails_says_why_and_leaves_nothing(folder, arguments, error, text):
    with pytest.raises(error, match=text) as raised:
        agmm.local(**arguments).start()
    assert "\n" not in str(raised.value)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("text, heap_bytes", [
    ("16MiB", 16 << 20), ("0.5MiB", 512 << 10), ("20MB", 20_000_000), ("1.5 MB", 1_500_000), ("500kB", 500_000),
    ("0.001GB", 1_000_000), ("65536B", 65_536)])
def test_a_heap_has_a_size_in_any_unit(text, heap_bytes):
    with agmm.local(1, heap=text) as client:
        assert heap_bytes - 4096 < client.world().devices[0].heap_bytes <= heap_bytes + 4096


def test_a_missing_program_is_named(folder, monkeypatch):
    monkeypatch.setattr(programs, "__file__", str(folder / "programs.py"))
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(FileNotFoundError, match="agmmd is neither in"):
        agmm.local(1).start()
    assert list(folder.iterdir()) == []


def test_a_daemon_killed_in_the_block_gives_errors_and_no_hang(folder):
    with agmm.local(1, heap=HEAP) as client:
        os.kill(pid_of(str(next(folder.iterdir()) / "agmmd.sock")), signal.SIGKILL)
        with pytest.raises(agmm.Error):
            client.put("A", np.zeros((2, 2), np.float32), "[M, K]")
    assert list(folder.iterdir()) == []


ENDS = {
    "an interpreter that exits in the block": """
        daemon = agmm.local(1, heap="16MiB")
        client = daemon.start()
        print(daemon.endpoint, flush=True)
        sys.exit()
    """,
    "an interpreter that exits after it dropped another one": """
        daemon = agmm.local(1, heap="16MiB")
        client = daemon.start()
        daemon = agmm.local(1, heap="16MiB")
        client = daemon.start()
        print(daemon.endpoint, flush=True)
    """,
    "an interpreter that exits with daemons in cycles and in use by threads": """
        daemon = agmm.local(1, heap="16MiB")
        client = daemon.start()
        client.fill("A", (8, 8), "[M_x, K]")
        class Cycle: pass
        cycle = Cycle()
        cycle.own, cycle.held = cycle, agmm.local(1, heap="16MiB").start()
        cycle.mapping = cycle.held.fill("A", (8, 8), "[M_x, K]").map()
        def use():
            while True:
                try:
                    client.get("A")
                except agmm.Error:
                    pass
        import threading
        threading.Thread(target=use, daemon=True).start()
        print(daemon.endpoint, flush=True)
    """,
    "SIGKILL": """
        daemon = agmm.local(1, heap="16MiB")
        client = daemon.start()
        print(daemon.endpoint, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """,
    "SIGKILL while a forked child lives": """
        daemon = agmm.local(1, heap="16MiB")
        client = daemon.start()
        if os.fork() == 0:
            os.close(1)
            os.close(2)
            sys.stdin.read()
            os._exit(0)
        print(daemon.endpoint, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """,
    "SIGKILL with a world": """
        world = agmm.world([1, 1], heap="16MiB")
        print(world.endpoint(0), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """,
    "SIGTERM": """
        daemon = agmm.local(1, heap="16MiB")
        client = daemon.start()
        print(daemon.endpoint, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
    """,
}


@pytest.mark.parametrize("text", ENDS.values(), ids=ENDS.keys())
def test_the_daemon_ends_with_its_process(folder, text):
    # The forked child reads stdin, and ends with this test.
    read, write = os.pipe()
    script = "import agmm, os, signal, sys\n" + textwrap.dedent(text)
    process = subprocess.Popen([sys.executable, "-c", script], stdin=read, stdout=subprocess.PIPE, text=True)
    os.close(read)
    socket = process.stdout.readline().strip()
    assert socket
    assert process.wait(PATIENCE_S) in (0, -signal.SIGKILL, -signal.SIGTERM)
    wait_until(lambda: not os.path.exists(socket) and list(folder.iterdir()) == [])
    wait_until(lambda: not daemons_in(folder))
    os.close(write)
    process.stdout.close()


def daemons_in(folder) -> list[int]:
    """The daemons that were started with this folder for temporary files."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if b"agmmd\0" in (path / "cmdline").read_bytes() and (
                    f"TMPDIR={folder}\0".encode() in (path / "environ").read_bytes()) and runs(int(path.name)):
                found.append(int(path.name))
        except OSError:
            pass
    return found


def test_ctrl_c_in_the_block_ends_it(folder):
    process = start_script("""
        with agmm.local(1, heap="16MiB") as client:
            print("ready", flush=True)
            while True:  # a signal right before a sleep does not end it
                time.sleep(0.1)
    """)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert "KeyboardInterrupt" in err
    assert list(folder.iterdir()) == [] and daemons_in(folder) == []


def test_ctrl_c_of_the_terminal_does_not_reach_the_daemon(folder):
    # A terminal sends SIGINT to the whole process group.
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent("""
            import agmm, time
            with agmm.local(1, heap="16MiB") as client:
                try:
                    print("ready", flush=True)
                    while True:
                        time.sleep(0.1)
                except KeyboardInterrupt:
                    print(client.world().ready, flush=True)
        """)], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=PATIENCE_S)[0] == "True\n"
    assert process.returncode == 0


def test_a_forked_childs_exit_leaves_the_daemon_alone():
    process = start_script("""
        with agmm.local(1, heap="16MiB") as client:
            child = os.fork()
            if child == 0:
                sys.exit()          # runs the exit handlers, and leaves the block
            os.waitpid(child, 0)
            print(client.world().ready)
    """)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert out == "True\n", err


def test_numbers_of_numpy_are_numbers():
    with agmm.local(np.int64(2), heap=HEAP, threads=np.int32(1)) as client:
        assert len(client.world().devices) == 2


def test_many_starts_and_stops_keep_no_descriptors():
    def count():
        return len(os.listdir("/proc/self/fd"))

    with agmm.local(1, heap=HEAP):
        pass
    before = count()
    for _ in range(5):
        with agmm.local(1, heap=HEAP):
            pass
    assert count() <= before + 1
