"""Helpers of the tests."""

import contextlib
import os
import pathlib
import signal
import time

import numpy as np

PATIENCE_S = 60
SPEC = "A[M_x, K] * B[K, N_x] -> C[M, N_x]"
LONG = {"repeat": 1_000_000, "timeout": 600}  # of a job that runs until it is cancelled


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
    os.kill(daemon, signal.SIGSTOP)
    try:
        threads = pathlib.Path(f"/proc/{daemon}/task").iterdir
        wait_until(lambda: all((thread / "stat").read_text().rpartition(")")[2].split()[0] == "T" for thread in threads()))
        yield
    finally:
        os.kill(daemon, signal.SIGCONT)


def integers(rows, cols, seed, dtype=np.float32):
    """Returns a matrix whose products are exact."""
    return np.random.default_rng(seed).integers(-4, 5, (rows, cols)).astype(dtype)


A, B = integers(50, 30, 1), integers(30, 40, 2)  # the operands of SPEC in most tests
