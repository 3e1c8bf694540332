"""Helpers of the tests."""

import contextlib
import os
import pathlib
import signal
import socket
import threading
import time

import agmm
import numpy as np

PATIENCE_S = 60
SPEC = "A[M_x, K] * B[K, N_x] -> C[M, N_x]"
LONG = {"repeat": 1_000_000, "timeout": 600}  # of a job that runs until it is cancelled, if an epoch takes a millisecond
# Operands of SPEC, by their names, for Client.fill. An epoch takes milliseconds without the delays of conftest's daemon, too.
LARGE = {"A": ((512, 512), "[M_x, K]"), "B": ((512, 512), "[K, N_x]")}


def wait_until(holds):
    """Waits until `holds()` is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def stopped(local):
    """While the block runs, no thread of the daemon does."""
    daemon = int(pathlib.Path(local.endpoint + ".lock").read_text())

    def are_stopped():
        try:
            return all((thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
                       for thread in pathlib.Path(f"/proc/{daemon}/task").iterdir())
        except (FileNotFoundError, ProcessLookupError):
            return False  # a thread ended meanwhile

    os.kill(daemon, signal.SIGSTOP)
    try:
        wait_until(are_stopped)
        yield
    finally:
        os.kill(daemon, signal.SIGCONT)


async def start_long_job(client):
    """Returns a job that runs until it is cancelled."""
    for operand, matrix in LARGE.items():
        await client.fill(operand, *matrix)
    job = await client.submit(SPEC, "A", "B", "C", **LONG)
    async for event in job.watch():
        if event.state == agmm.JobState.RUNNING:
            break
    return job


class Relay:
    """Passes connections on to a daemon from its own endpoint. While `answers` is clear, the daemon's answers wait."""

    def __init__(self, local, folder):
        self.endpoint = str(folder / "relay.sock")
        self.answers = threading.Event()
        self.answers.set()
        self._daemon = local.endpoint
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.endpoint)
        self._listener.listen()
        self._sockets = [self._listener]
        self._threads = []
        self._start(self._accept)

    def _start(self, call, *arguments):
        self._threads.append(threading.Thread(target=call, args=arguments))
        self._threads[-1].start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, daemon = self._listener.accept()[0], socket.socket(socket.AF_UNIX)
                self._sockets += [client, daemon]
                daemon.connect(self._daemon)
                self._start(self._pass_on, client, daemon, False)
                self._start(self._pass_on, daemon, client, True)

    def _pass_on(self, source, target, are_answers):
        with contextlib.suppress(OSError):
            while part := source.recv(1 << 16):
                if are_answers:
                    self.answers.wait()
                target.sendall(part)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.answers.set()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for each in self._sockets:
            each.close()


def integers(rows, cols, seed, dtype=np.float32):
    """Returns a matrix whose products are exact."""
    return np.random.default_rng(seed).integers(-4, 5, (rows, cols)).astype(dtype)


A, B = integers(50, 30, 1), integers(30, 40, 2)  # the operands of SPEC in most tests
